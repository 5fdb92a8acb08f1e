"""Message traces: the path of one message, sent to a subject that its publisher has chosen.

    HPUB orders.new ...                 {"server": {...},
    Nats-Trace-Dest: traces.1      ->    "request": {"header": {...}, "msgsize": 40},
    Nats-Trace-Only: true                "events": [{"type": "in", ...}, {"type": "eg", ...}]}

With Nats-Trace-Only the message itself is not delivered or stored. An account can also have its
messages traced whose `traceparent` is marked as sampled. Source: nats-server msgtrace.go.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.protocols.nats.accounts.subjects import has_wildcard, is_subject
from broker.protocols.nats.monitoring.options import rfc3339
from broker.protocols.nats.system.envelope import (
    accepted_encoding,
    content_encoding,
    encode,
    pack,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]

CLIENT: Final = 0  # kinds of connections, as in the original
LEAF: Final = 2
_DEST: Final = "Nats-Trace-Dest"
_ONLY: Final = "Nats-Trace-Only"
_PARENT: Final = "traceparent"
_DISABLED: Final = "trace disabled"  # as a destination: an earlier server has traced it already
_ORIGIN: Final = "Nats-Trace-Origin-Account"
_FIRST: Final = b"NATS/1.0\r\n"  # headers with a status are not those of a publisher
_FLAGS_MAX: Final = 127
_YES: Final = frozenset({"1", "true", "on"})


class Publisher(Protocol):
    """The session that publishes the message."""

    @property
    def client_id(self) -> int: ...
    @property
    def account(self) -> Any: ...  # accounts.account.Account
    @property
    def options(self) -> Any: ...


class MessageTrace:
    """One traced message. Sinks that accept it report to it while it is being routed."""

    def __init__(
        self, publisher: Publisher, headers: bytes, subject: bytes, size: int, dest: str
    ) -> None:
        """`size`: bytes of headers and body; `dest`: where the trace is sent."""
        self.account = publisher.account
        self.headers = headers
        self.dest = dest
        self.size = size
        self.fields = header_fields(headers)
        self.only = only_traced(self.fields) and bool(self.fields.get(_DEST))
        self.events: list[Json] = []
        named = {"name": publisher.options.name} if publisher.options is not None else {}
        self._add(
            "in", kind=CLIENT, cid=publisher.client_id, **named,
            acc=publisher.account.name, subj=_text(subject),
        )  # fmt: skip

    def _add(self, what: str, **fields: object) -> None:
        event = {"type": what, "ts": rfc3339(time.time_ns())}
        self.events.append(event | {key: value for key, value in fields.items() if value != ""})

    def mapped(self, subject: bytes) -> None:
        """A mapping of the account has changed the subject."""
        self._add("sm", to=_text(subject))

    def egress(
        self, session: Any, subject: bytes, queue: bytes, account: str, error: str = ""
    ) -> None:
        """A connection receives the message for this subscription; `account`: of the connection."""
        leaf = session.kind.startswith("LEAF")
        name = session.options.name if session.options is not None else ""
        self._add(
            "eg", kind=LEAF if leaf else CLIENT, cid=session.client_id, name=name,
            acc=account if account != self.account.name else "",
            sub="" if leaf else _text(subject), queue=_text(queue), error=error,
        )  # fmt: skip

    def service_import(self, account: str, came_as: bytes, subject: bytes) -> None:
        """The message is passed to a service of another account."""
        self._add("si", acc=account, **{"from": _text(came_as)}, to=_text(subject))

    def stream_export(self, account: str, subject: bytes) -> None:
        """The message is passed to another account, which imports the stream."""
        self._add("se", acc=account, to=_text(subject))

    def jetstream(
        self, stream: str, subject: bytes, *, no_interest: bool = False, error: str = ""
    ) -> None:
        """A stream stores the message, or refuses it."""
        event: Json = {"type": "js", "ts": rfc3339(time.time_ns()), "stream": stream}
        event |= {"subject": _text(subject)} if subject else {}
        event |= {"nointerest": True} if no_interest else {}
        self.events.append(event | ({"error": error} if error else {}))

    def finish(self, server: Json) -> None:
        """Send the trace. `server`: the block that identifies this server."""
        request = {"header": self.fields, "msgsize": self.size}
        body = encode({"server": server, "request": request, "events": self.events})
        encoding = accepted_encoding(self.headers)
        encoding = encoding if encoding in {"snappy", "gzip"} else ""
        self.account.publish(
            self.dest.encode(), pack(body, encoding), headers=content_encoding(encoding)
        )


def begin(
    publisher: Publisher,
    headers: bytes,
    subject: bytes,
    size: int,
    may_publish: Callable[[bytes], bool],
) -> MessageTrace | str | None:
    """The trace that a message requests; None: it requests none. A text: the message is dropped,
    and the text is the destination if the publisher may not publish there, otherwise empty."""
    fields = header_fields(headers)
    dest = fields.get(_DEST, [""])[0]
    if not headers.startswith(_FIRST) or dest == _DISABLED:
        return None
    refused = _ORIGIN in fields  # a server of another version has traced it
    if dest:
        if refused or not is_subject(dest) or has_wildcard(dest):
            return "" if only_traced(fields) else None
    else:
        config = publisher.account.config
        if config is None or not config.trace_dest or not any(map(sampled, _parents(fields))):
            return None
        if refused or random.randrange(100) >= config.trace_sampling:  # noqa: S311 - no secret
            return None
        dest = config.trace_dest
    if not may_publish(dest.encode()):
        return dest
    return MessageTrace(publisher, headers, subject, size, dest)


def _parents(fields: dict[str, list[str]]) -> list[str]:
    return [value for name in fields if name.lower() == _PARENT for value in fields[name]]


def only_traced(fields: dict[str, list[str]]) -> bool:
    """Whether the message is not to be delivered."""
    return fields.get(_ONLY, [""])[0].lower() in _YES


def sampled(parent: str) -> bool:
    """Whether a `traceparent` is marked as sampled: the lowest bit of its flags, a number of seven
    bits in the original."""
    parts = parent.split("-")
    if len(parts) != 4 or len(parts[3]) != 2:
        return False
    try:
        flags = int(parts[3], 16)
    except ValueError:
        return False
    return flags & 1 == 1 and flags <= _FLAGS_MAX


def header_fields(headers: bytes) -> dict[str, list[str]]:
    """The header fields by their exact names, each with its values in order; without empty ones, as
    in the original."""
    fields: dict[str, list[str]] = {}
    for line in headers.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if colon and name and value:
            fields.setdefault(_text(name), []).append(_text(value))
    return dict(sorted(fields.items()))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
