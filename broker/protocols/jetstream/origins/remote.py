"""The consumer through which a mirror or source reads a stream of another server, with the API of
that server. It also reads a stream of this server that removes acked messages.

    create a consumer after the stored messages -> Receiver -> Copier -> wait
                   ^                                                      |
                   +--- [a delivery is missing, silence, failure] <-------+

It is a push consumer without acks, with heartbeats and flow control; its server deletes it when it
has no subscriber. If the retention of the origin is interest or workqueue, its server creates a
durable consumer instead, and answers to flow control are its acks. It exists until the mirror or
source is removed. The configuration of a mirror or source can also name an existing durable
consumer: this one is reset to its ack floor. Servers before 2.14 do not support named consumers of
mirrors and sources: they get a request without a name. Source: nats-server stream.go
(setupMirrorConsumer, trySetupSourceConsumer).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import orjson

from broker.base.units import SECOND
from broker.protocols.jetstream import errors
from broker.protocols.jetstream.errors import ApiError, ErrorRow
from broker.protocols.jetstream.origins.copier import hash_of
from broker.protocols.jetstream.origins.receiver import Receiver
from broker.protocols.jetstream.structs import (
    ConsumerConfig,
    CreateConsumerRequest,
    deliver_subject,
    encode,
)
from broker.protocols.nats.accounts.asking import Question, ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.jetstream.origins.copier import Copier

log = logging.getLogger("broker.jetstream")

ANSWER_S: Final = 5.0  # timeout of requests to the other server
FIRST_WAIT_S: Final = 0.1  # before the second attempt; it doubles with each one
LONGEST_WAIT_S: Final = 5.0
CHECK_S: Final = 1.0  # between checks for silence of the other server
HEARTBEAT: Final = 1 * SECOND
SILENCE: Final = 5 * SECOND  # without a message for this time, a new consumer is created
INACTIVE: Final = 10 * SECOND  # its server deletes it after this time without a subscriber
ACK_WAIT: Final = 22 * 3_600 * SECOND  # as in nats-server; there are no acks
_API: Final = "$JS.API"
_OLD_SERVER_ERRORS: Final = {errors.REQUIRED_API_LEVEL.err_code, errors.INVALID_JSON.err_code}
_LEVEL_HEADERS: Final = b"NATS/1.0\r\nNats-Required-Api-Level: 4\r\n\r\n"  # of named consumers


class RemoteOrigin:
    """Has another server deliver messages to a copier until `close`."""

    def __init__(self, copier: Copier, new_id: Callable[[], str]) -> None:
        """`new_id()`: a unique token for the deliver subject."""
        self.copier = copier
        self._new_id = new_id
        self._changed = asyncio.Event()
        self._receiver: Receiver | None = None
        self._named = True
        self._durable = False  # the consumer is durable
        copier.on_settled = copier.on_failed = self._changed.set
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self, *, delete: bool = False) -> None:
        """Stop receiving. Its server deletes the consumer, a durable one only with `delete`."""
        self._task.cancel()
        self._close_receiver()
        if delete and self._durable and self.copier.source.consumer is None:
            source = self.copier.source
            subject = f"{self._api}.CONSUMER.DELETE.{source.name}.{self._name}"
            self._deletion = asyncio.get_running_loop().create_task(
                ask(self.copier.target.account, Question(subject.encode(), b""), ANSWER_S)
            )

    @property
    def _api(self) -> str:
        external = self.copier.source.external
        return _API if external is None else external.api

    @property
    def _name(self) -> str:
        """The name of the consumer. It is the same after each start of this server."""
        copier, kind = self.copier, "MIRROR" if self.copier.mirrors else "SOURCE"
        target = copier.target
        identity = f"{target.domain} {target.account.name} {target.name} {copier.key}"
        return f"JS_{kind}_{hash_of(identity)}"

    def _close_receiver(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    async def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                before = self.copier.stored_to
                if await self._start_consumer():
                    await self._wait_for_end()
                if self.copier.stored_to > before:
                    wait_s = FIRST_WAIT_S
            except Exception:
                source, target = self.copier.source, self.copier.target
                log.exception("stream %r copies from %r", target.name, source.name)
            self._close_receiver()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _start_consumer(self) -> bool:
        """Create a consumer that begins after the stored messages, or reset the configured one.
        False: this has failed."""
        copier = self.copier
        while copier.pending:
            self._changed.clear()
            await self._changed.wait()
        position = copier.restart()
        known = copier.source.consumer
        to = (
            known.deliver_subject
            if known is not None
            else deliver_subject(copier.source, self._new_id(), copier.mirrors)
        )
        self._receiver = Receiver(
            copier, to.encode(), self._changed.set, restarts=known is not None
        )
        self._receiver.open()
        found = await ask(copier.target.account, self._request(to, position), ANSWER_S)
        if found is None:
            return False
        error = _error_of(found)
        if error is not None:
            copier.set_error(error)
            if error.err_code in _OLD_SERVER_ERRORS:
                self._named = False
            return False
        created = _config_of(found)
        self._durable = bool(created.get("durable_name"))
        if known is not None and created.get("ack_policy") != "flow_control":
            row = errors.MIRROR_CONSUMER_ACK if copier.mirrors else errors.SOURCE_CONSUMER_ACK
            copier.set_error(ApiError(row))
            return False
        self._receiver.reset()
        if not self._receiver.ended:  # otherwise `error` has the reason
            copier.delivery_started()
        return True

    def _request(self, to: str, position: int) -> Question:
        """The request for a consumer that delivers the messages after a position to the subject
        `to`."""
        source, known = self.copier.source, self.copier.source.consumer
        if known is not None:
            subject = f"{self._api}.CONSUMER.RESET.{source.name}.{known.name}"
            return Question(subject.encode(), b"")
        subject = f"{self._api}.CONSUMER.CREATE.{source.name}"
        subject += f".{self._name}" * self._named
        body = encode(CreateConsumerRequest(source.name, self._config(to, position)))
        return Question(subject.encode(), body, _LEVEL_HEADERS if self._named else b"")

    def _config(self, to: str, position: int) -> ConsumerConfig:
        source = self.copier.source
        config = ConsumerConfig(
            ack_policy="none",
            ack_wait=ACK_WAIT,
            max_deliver=1,
            deliver_subject=to,
            flow_control=True,
            idle_heartbeat=HEARTBEAT,
            inactive_threshold=INACTIVE,
            direct=True,
        )
        if self._named:
            config.name, config.sourcing = self._name, True
        if position:
            config.deliver_policy = "by_start_sequence"
            config.opt_start_seq = position + 1
        elif source.opt_start_time:
            config.deliver_policy = "by_start_time"
            config.opt_start_time = source.opt_start_time
        filters = [each.src or ">" for each in source.subject_transforms]
        if len(filters) > 1:
            config.filter_subjects = filters
        else:
            config.filter_subject = filters[0] if filters else source.filter_subject
        return config

    async def _wait_for_end(self) -> None:
        """Wait until a delivery is missing, received messages are not stored, or no message has
        arrived for SILENCE."""
        receiver = self._receiver
        assert receiver is not None
        while not receiver.ended and not self.copier.is_lost:
            self._changed.clear()
            if self.copier.silent_ns > SILENCE:
                return
            try:
                async with asyncio.timeout(CHECK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass


def _config_of(answer: bytes) -> dict[str, Any]:
    """The configuration in an answer; empty if it has none."""
    try:
        return dict(orjson.loads(answer)["config"])
    except (ValueError, TypeError, KeyError):
        return {}


def _error_of(answer: bytes) -> ApiError | None:
    """The error in an answer; None: the consumer was created."""
    try:
        error = orjson.loads(answer).get("error")
        if error is None:
            return None
        row = ErrorRow(int(error.get("err_code", 0)), int(error["code"]), "{err}")
        return ApiError(row, err=str(error.get("description", "")))
    except (ValueError, TypeError, KeyError, AttributeError):
        return ApiError(ErrorRow(0, 500, "the other server's answer cannot be read"))
