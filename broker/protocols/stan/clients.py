"""Clients: connecting, heartbeats, closing.

A client is alive if it answers heartbeats. Its own pings only check that it is still registered.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import secrets
import string
from typing import TYPE_CHECKING

from broker.base.patterns import lazy_pattern
from broker.base.units import SECOND
from broker.protocols.stan import errors, limits
from broker.protocols.stan.config import is_subject_to_send
from broker.protocols.stan.publish import Client, RefusedError
from broker.protocols.stan.store import ClientRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.stan.config import StanConfig
    from broker.protocols.stan.publish import Service
    from broker.protocols.stan.store import Store

log = logging.getLogger("broker.stan")

CLIENT_ID = lazy_pattern(r"[a-zA-Z0-9_-]+", re.ASCII)
_BASE62 = string.digits + string.ascii_letters
_NAME_LENGTH = 22  # of a random name, as in NATS clients


def random_name() -> str:
    """A random name, as unique as those of NATS clients."""
    return "".join(secrets.choice(_BASE62) for _ in range(_NAME_LENGTH))


class Clients:
    """Connects, watches and closes the clients of one service."""

    def __init__(
        self,
        settings: StanConfig,
        service: Service,
        store: Store,
        on_close: Callable[[Client], object],
    ) -> None:
        """`on_close(client)` ends the subscriptions of a client."""
        self.settings = settings
        self.service = service
        self.store = store
        self.on_close = on_close
        self.inbox = f"_INBOX.{random_name()}"
        self._asked: dict[bytes, tuple[asyncio.TimerHandle, Callable[[bool], object]]] = {}
        self._count = 0

    @property
    def reply_subject(self) -> bytes:
        """The subject for answers to heartbeats."""
        return f"{self.inbox}.*".encode()

    # --- connecting

    def connect(self, record: ClientRecord, answer: Callable[[Client | str], object]) -> None:
        """Register a client; `answer` gets it or an error, perhaps after a probe of an old one."""
        if not record.hb_inbox or not is_subject_to_send(record.hb_inbox):
            answer(errors.STAN_INVALID_CONNECT)
            return
        if not CLIENT_ID.fullmatch(record.client_id):
            answer(errors.STAN_INVALID_CLIENT_ID)
            return
        old = self.service.clients.get(record.client_id.encode())
        if old is None:
            answer(self._enter(record))
            return
        if old.probed or old.owner not in (None, record.owner):
            # another user's client is not replaced, even if it does not answer
            answer(errors.STAN_CLIENT_REGISTERED)
            return

        def probed(alive: bool) -> None:
            old.probed = False
            if alive and not old.closed:
                answer(errors.STAN_CLIENT_REGISTERED)
                return
            if not old.closed:
                self.close(old)
            self.connect(record, answer)  # another client may have registered the id meanwhile

        old.probed = True
        self._ask(old, limits.STAN_PROBE_TIMEOUT, probed)

    def _enter(self, record: ClientRecord) -> Client | str:
        try:
            self.store.add_client(record)
        except OSError as problem:
            return errors.STAN_STORE.format(reason=problem.strerror)
        return self._begin(record, 1.0)

    def restore(self, record: ClientRecord) -> None:
        """Register a client again after a restart. The first heartbeats are spread over time:
        thousands at one moment would delay all other work, in this and every later interval."""
        self._begin(record, random.uniform(0.5, 1.0))  # noqa: S311

    def _begin(self, record: ClientRecord, share: float) -> Client:
        client = Client(
            record.client_id,
            record.hb_inbox,
            bytes.fromhex(record.conn_id),
            record.protocol,
            record.ping_interval,
            record.ping_max,
            record.owner,
        )
        self.service.register(client)
        self._arm_heartbeat(client, share)
        return client

    def close(self, client: Client) -> None:
        """Close a client that asked for it or does not answer."""
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None
        self.service.unregister(client)
        self.on_close(client)
        try:
            self.store.remove_client(client.client_id)
        except OSError as problem:
            log.error("client %s: %s", client.client_id, problem)

    def known(self, client_id: str) -> Client:
        """The client of that id; RefusedError if it is unknown."""
        if not client_id:
            raise RefusedError(errors.STAN_NO_CLIENT_ID)
        client = self.service.clients.get(client_id.encode())
        if client is None:
            raise RefusedError(errors.STAN_UNKNOWN_CLIENT_ID)
        return client

    # --- heartbeats

    def ping(self, conn_id: bytes) -> str:
        """The answer to a ping: empty if the client is registered, else an error."""
        client = self.service.connections.get(conn_id)
        if client is None:
            return errors.STAN_REPLACED
        if client.failures and client.timer is not None:
            client.timer.cancel()
            client.timer = asyncio.get_running_loop().call_soon(self._heartbeat, client)
        return ""

    def _arm_heartbeat(self, client: Client, share: float = 1.0) -> None:
        delay = share * self.settings.hb_interval_ns / SECOND
        client.timer = asyncio.get_running_loop().call_later(delay, self._heartbeat, client)

    def _heartbeat(self, client: Client) -> None:
        client.timer = None
        self._ask(
            client, self.settings.hb_timeout_ns, lambda alive: self._heartbeat_done(client, alive)
        )

    def _heartbeat_done(self, client: Client, alive: bool) -> None:
        if client.closed:
            return
        client.failures = 0 if alive else client.failures + 1
        if client.failures > self.settings.hb_fail_count:
            log.info("client %s does not answer heartbeats and is closed", client.client_id)
            self.close(client)
            return
        client.set_healthy(alive)
        if client.timer is None:
            self._arm_heartbeat(client)

    def _ask(self, client: Client, timeout_ns: int, done: Callable[[bool], object]) -> None:
        """Send a heartbeat; `done(alive)` is called once: whether the client answered in time."""
        self._count += 1
        subject = f"{self.inbox}.{self._count}".encode()

        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_ns / SECOND, self._answer, subject, False)
        self._asked[subject] = (timer, done)
        if self.service.publish(client.hb_inbox.encode(), b"", subject) == 0:
            self._answer(subject, alive=False)

    def _answer(self, subject: bytes, alive: bool) -> None:
        timer, done = self._asked.pop(subject, (None, None))
        if timer is not None and done is not None:
            timer.cancel()
            done(alive)

    def answered(self, subject: bytes) -> None:
        """Handle the answer to a heartbeat."""
        self._answer(subject, alive=True)

    def stop(self) -> None:
        """Stop sending heartbeats; clients stay registered."""
        for client in self.service.clients.values():
            if client.timer is not None:
                client.timer.cancel()
                client.timer = None
        for timer, _ in self._asked.values():
            timer.cancel()
        self._asked.clear()
