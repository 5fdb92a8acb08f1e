"""The common parts of system account messages: server, time, sequence, encoding."""

from __future__ import annotations

import io
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.base.values import dataclass
from broker.protocols.nats import limits
from broker.protocols.nats.monitoring.options import encode as json_of
from broker.protocols.nats.monitoring.options import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.nats.views import AccountsView, LocalAccount

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BASE: Final = len(_DIGITS)
_PREFIX_CHARS: Final = 12
_SEQUENCE_CHARS: Final = 10
_STEP_MIN, _STEP_MAX = 33, 333
# JetStream, snapshots in binary, Raft traffic in the accounts: the original's without a cluster.
_JETSTREAM_FLAGS: Final = 7

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The constant part of the server block."""

    name: str
    host: str  # as in INFO
    server_id: str
    version: str
    cluster: str = ""
    domain: str = ""
    tags: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, bool], ...] = tuple(limits.NATS_FEATURE_FLAGS.items())


class Envelope:
    """Builds server blocks and the first fields of events."""

    def __init__(
        self, identity: ServerIdentity, has_jetstream: Callable[[], bool] = lambda: False
    ) -> None:
        self.has_jetstream = has_jetstream
        self.sequence = 0
        self.ids = EventIds()
        self.use(identity)

    def use(self, identity: ServerIdentity) -> None:
        """Replace the identity."""
        self.identity = identity
        tags = tuple(dict.fromkeys(t for tag in identity.tags if (t := tag.strip().lower())))
        self.tags = frozenset(tags)
        optional = {"cluster": identity.cluster, "domain": identity.domain}
        self._head: Json = {"name": identity.name, "host": identity.host, "id": identity.server_id}
        self._head.update({name: value for name, value in optional.items() if value})
        self._head["ver"] = identity.version
        if tags:
            self._head["tags"] = tags
        if identity.metadata:
            self._head["metadata"] = dict(sorted(identity.metadata))
        self._head["feature_flags"] = dict(identity.flags)

    def server(self) -> Json:
        """The server block of the next message."""
        self.sequence += 1
        enabled = self.has_jetstream()
        return {
            **self._head,
            "jetstream": enabled,
            "flags": _JETSTREAM_FLAGS if enabled else 0,
            "seq": self.sequence,
            "time": rfc3339(time.time_ns()),
        }

    def event(self, kind: str, wall_ns: int = 0) -> Json:
        """The first fields of an advisory."""
        return {
            "type": f"io.nats.server.advisory.v1.{kind}",
            "id": self.ids.next(),
            "timestamp": rfc3339(wall_ns or time.time_ns()),
        }


class EventIds:
    """Unique ids of 22 characters: a random head and an increasing number."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.head = "".join(secrets.choice(_DIGITS) for _ in range(_PREFIX_CHARS))
        self.number = secrets.randbelow(_BASE**_SEQUENCE_CHARS)
        self.step = _STEP_MIN + secrets.randbelow(_STEP_MAX - _STEP_MIN)

    def next(self) -> str:
        self.number += self.step
        if self.number >= _BASE**_SEQUENCE_CHARS:
            self._start()
        digits, rest = [], self.number
        for _ in range(_SEQUENCE_CHARS):
            rest, digit = divmod(rest, _BASE)
            digits.append(_DIGITS[digit])
        return self.head + "".join(reversed(digits))


def encode(value: object) -> bytes:
    """Encode as JSON on one line."""
    return json_of(value, indent=False)


# --- compressed answers --------------------------------------------------------------

_ACCEPT: Final = b"\r\nAccept-Encoding:"


def accepted_encoding(headers: bytes) -> str:
    """The encoding that a request accepts; "identity" for unknown ones, "" for none."""
    at = headers.find(_ACCEPT)
    if at < 0:
        return ""
    value = headers[at + len(_ACCEPT) :].partition(b"\r\n")[0].strip(b" ").lower()
    if b"snappy" in value or b"s2" in value:
        return "snappy"
    if b"gzip" in value:
        return "gzip"
    return "identity" if value else ""


def content_encoding(encoding: str) -> bytes:
    """The headers of an answer with that encoding."""
    return b"NATS/1.0\r\nContent-Encoding: %b\r\n\r\n" % encoding.encode() if encoding else b""


def pack(body: bytes, encoding: str) -> bytes:
    """The encoded body; for snappy in its framing format."""
    if encoding == "gzip":
        import gzip

        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream:
            stream.write(body)
        return packed.getvalue()
    if encoding == "snappy":
        import snappy  # type: ignore[import-untyped]

        return bytes(snappy.StreamCompressor().compress(body))
    return body


# --- interfaces of the service ----------------------------------------------------------------


class Pages(Protocol):
    """The pages of the monitoring listener, by their names in requests.

    VARZ SUBSZ CONNZ ROUTEZ GATEWAYZ LEAFZ ACCOUNTZ JSZ HEALTHZ, ACCSTATZ of all accounts or some,
    and INFO, the detail of one account in ACCOUNTZ. They raise PageError.
    """

    def page(self, name: str, options: Json) -> Json: ...


@dataclass(slots=True)
class Station:
    """The environment of the service."""

    server: AccountsView
    account: LocalAccount  # the system account
    envelope: Envelope
    pages: Pages

    def publish(self, subject: bytes, event: Json, account: LocalAccount | None = None) -> None:
        """Publish at once, in the system account unless another one is given."""
        (account or self.account).publish(subject, encode(event))
