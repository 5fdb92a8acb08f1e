"""Publishing a message to a topic or to a NATS subject."""

from __future__ import annotations

import base64
import binascii
import re
import time
from typing import TYPE_CHECKING, Any, Final

from broker.base.units import MS
from broker.console import errors, limits
from broker.console.api.nats import need_account
from broker.console.errors import RefusedError
from broker.engine.log.files import QuarantinedError
from broker.engine.log.publish import append, failure, outcome, settled
from broker.engine.names import is_ephemeral, is_name
from broker.protocols.access import WRITE
from broker.protocols.nsq.config import NsqConfig

if TYPE_CHECKING:
    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.protocols.stream_topic import StreamTopic

    Json = dict[str, Any]

SUBJECT_MAX: Final = 4096  # bytes, as NATS clients may use
_NAME: Final = re.compile(r"[!-9;-~]+", re.ASCII)
_VALUE: Final = re.compile(r"[^\r\n\0]*")
_TOKEN: Final = re.compile(r"[^\s.\0\x00-\x1f]+")


def subject_of(text: str, *, wildcards: bool = False) -> bytes:
    """A checked subject. RefusedError."""
    tokens = text.split(".")
    is_valid = all(map(_TOKEN.fullmatch, tokens)) and len(text.encode()) <= SUBJECT_MAX
    special = [at for at, token in enumerate(tokens) if token in ("*", ">")]
    if special and not wildcards:
        is_valid = False
    if ">" in tokens[:-1] or not is_valid:
        raise RefusedError(errors.ARGUMENT, name="subject", reason=errors.SUBJECT)
    return text.encode()


def headers_of(fields: dict[str, list[str]] | None) -> bytes:
    """Headers as they are stored and sent; empty: none. RefusedError."""
    lines = []
    for name, values in (fields or {}).items():
        for value in values:
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise RefusedError(errors.ARGUMENT, name="headers", reason=errors.HEADER)
            lines.append(f"{name}: {value}\r\n".encode())
    if not lines:
        return b""
    found = b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n"
    if len(found) > limits.POLICY_HEADERS_MAX:
        reason = errors.BIG.format(limit=limits.POLICY_HEADERS_MAX)
        raise RefusedError(errors.ARGUMENT, name="headers", reason=reason)
    return found


class PublishHandlers:
    """The handler of /v1/publish."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context

    def handlers(self) -> Handlers:
        """By operation."""
        return {"publish": self.publish}

    async def publish(self, call: Call) -> Json:
        """Publish; a topic's message is stored before the answer."""
        fields = call.body
        body = bytes_of(fields)
        headers = headers_of(fields["headers"])
        if (fields["topic"] is None) == (fields["subject"] is None):
            reason = errors.ONE_OF.format(first="topic", second="subject")
            raise RefusedError(errors.BODY, reason=reason)
        if fields["subject"] is not None:
            subject = subject_of(fields["subject"])
            reply = subject_of(fields["reply"]) if fields["reply"] else b""
            account = need_account(self.context, fields["account"])
            return {"published": 1, "subscribers": account.publish(subject, body, reply, headers)}
        await self._store(fields["topic"], body, headers, fields["delay_ms"] or 0)
        return {"published": 1}

    async def _store(self, name: str, body: bytes, headers: bytes, delay_ms: int) -> None:
        config, host = self.context.host.section(NsqConfig), self.context.host
        if not is_name(name.encode("utf-8", "surrogateescape")):
            raise RefusedError(errors.ARGUMENT, name="topic", reason=errors.NAME)
        if not body:
            raise RefusedError(errors.ARGUMENT, name="body", reason=errors.EMPTY)
        if len(body) > config.max_msg_size:
            reason = errors.BIG.format(limit=config.max_msg_size)
            raise RefusedError(errors.ARGUMENT, name="body", reason=reason)
        most_ns = max(config.max_req_timeout_ns, config.max_defer_ns)
        if delay_ms * MS > most_ns:
            reason = f"expected at most {most_ns // MS}"
            raise RefusedError(errors.ARGUMENT, name="delay_ms", reason=reason)
        if name in host.engine.reserved:
            await self._publish_to_stream(name, body, has_more=bool(headers or delay_ms))
            return
        try:
            log = host.engine.open_log(name, ephemeral=is_ephemeral(name.encode()))
        except QuarantinedError as problem:
            raise RefusedError(errors.QUARANTINED, topic=name, reason=problem) from None
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise RefusedError(errors.NOT_SAVED, reason=reason) from problem
        if not host.access.may_topic(log, WRITE):
            raise RefusedError(errors.FOREIGN, topic=name, protocol=log.protocol)
        due_ns = time.time_ns() + delay_ms * MS if delay_ms else 0
        ticket = append(log, body, headers=headers, not_before_ns=due_ns)
        if ticket:
            await settled(log, ticket)
        if not ticket:
            raise RefusedError(errors.NOT_SAVED, reason=log.refusal)
        if outcome(log, ticket) < 0:
            raise RefusedError(errors.NOT_SAVED, reason=failure(log, ticket))

    async def _publish_to_stream(self, name: str, body: bytes, *, has_more: bool) -> None:
        """Publish to a topic that is a stream. `has_more`: with headers or a delay."""
        host = self.context.host
        stream: StreamTopic | None = host.engine.reserved[name]
        if stream is None or has_more or not host.access.may_use_stream(WRITE):
            raise RefusedError(errors.FOREIGN, topic=name, protocol="JetStream")
        try:
            await stream.publish_all([body])
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise RefusedError(errors.NOT_SAVED, reason=reason) from problem


def bytes_of(fields: Json) -> bytes:
    """The body of a message, from `body` and `encoding` of a request. RefusedError."""
    body: str = fields["body"]
    if fields["encoding"] == "base64":
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise RefusedError(errors.ARGUMENT, name="body", reason=errors.BASE64) from None
    try:
        return body.encode()
    except UnicodeEncodeError as problem:
        raise RefusedError(errors.BODY, reason=problem) from None
