"""Traces of protocol operations, and connection names, as in nats-server's log.

    127.0.0.1:47548 - cid:5 - <<- [PUB foo 5]
    127.0.0.1:47548 - cid:5 - <<- MSG_PAYLOAD: ["hello"]
    127.0.0.1:47548 - cid:5 - ->> [MSG foo 1 5]

A frontend has a Tracer, or None, which costs nothing. Credentials (passwords, tokens, signatures)
never appear in a line.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Final

from broker.base import logs
from broker.base.gotext import go_quote
from broker.base.units import SECOND
from broker.protocols.nats import limits
from broker.protocols.nats.wire.wire import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.protocols.nats.client.session import NatsSession
    from broker.protocols.nats.leafnodes.session import LeafSession

log = logging.getLogger("broker.nats")

REDACTED: Final = "[REDACTED]"
# Secret fields of CONNECT in lower case, because decoding ignores case.
SECRETS: Final = frozenset({"pass", "auth_token", "jwt", "sig", "proxy_sig"})


_LETTERS: Final = {"WEBSOCKET": "wid", "LEAFNODE": "lid", "LEAFNODE_WS": "lid_ws"}


def who(session: NatsSession | LeafSession) -> str:
    """The name of a connection in the log."""
    host = f"[{session.host}]" if ":" in session.host else session.host
    kind = _LETTERS.get(session.kind, "cid")
    forwarded = getattr(getattr(session, "websocket_peer", None), "forwarded", "")
    if forwarded:
        host = f"[{forwarded}]/{host}" if ":" in forwarded else f"{forwarded}/{host}"
    return f"{host}:{session.port} - {kind}:{session.client_id}"


def redacted(options: bytes) -> str:
    """The JSON of a CONNECT without secrets; other text than a JSON object is hidden."""
    try:
        found = json.loads(options)
    except (ValueError, RecursionError):
        return REDACTED
    if not isinstance(found, dict):
        return REDACTED
    shown = {
        key: REDACTED if key.lower() in SECRETS and value else value for key, value in found.items()
    }
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


class Tracer:
    """Logs every operation; those of the system account only if configured."""

    def __init__(self, payload_max: int, silent_account: str, headers_only: bool = False) -> None:
        """`payload_max`: bytes shown of a payload, 0 = all. `silent_account`: empty for none.
        `headers_only`: no bodies are shown."""
        self.payload_max = payload_max
        self.silent_account = silent_account
        self.headers_only = headers_only

    def received(
        self,
        session: NatsSession,
        kind: int,
        words: tuple[bytes, bytes, bytes],
        data: bytes,
        count: int,
    ) -> None:
        """Log a received operation; words: the subject, reply and text of wire's op_t."""
        if self._silent(session):
            return
        op, name = NAMES.get(kind, ""), who(session)
        if op == "CONNECT":
            self._line(name, "<<-", f"CONNECT {redacted(data)}")
        elif op == "PUB":
            op = "HPUB" if b" " in words[2] else op
            self._line(name, "<<-", _joined(op, *words))
            self._body(name, data, words[2].split() if op == "HPUB" else [])
        elif op == "UNSUB":
            self._line(name, "<<-", _joined(op, words[2], str(count).encode() if count else b""))
        elif op:
            self._line(name, "<<-", _joined(op, *words))

    def received_by_link(self, session: LeafSession, line: bytes, data: bytes | None) -> None:
        """Log an operation received from another server; `data`: a message's payload."""
        if self._silent(session):
            return
        name = who(session)
        if line.startswith(b"CONNECT "):
            line = b"CONNECT " + redacted(line[8:]).encode()
        self._line(name, "<<-", _text(line))
        if data is not None:
            self._body(name, data, line.split()[-2:] if line.startswith(b"H") else [])

    def sent(self, session: NatsSession | LeafSession, line: bytes, count: int = 1) -> None:
        """Log a sent line, `count` times; of a message only its head."""
        if self._silent(session) or line.startswith(b"INFO"):
            return
        shown = _text(line.rstrip().removeprefix(b"+"))
        if shown.startswith("-ERR '"):
            shown = f"-ERR {shown[6:-1]}"
        for _ in range(count):
            self._line(who(session), "->>", shown)

    def _silent(self, session: NatsSession | LeafSession) -> bool:
        account = session.account
        return account is not None and account.name == self.silent_account

    def _body(self, name: str, data: bytes, sizes: list[bytes]) -> None:
        """Log a message; `sizes`: of its headers and of all, if it has headers."""
        if self.headers_only:
            if not sizes:
                return
            data = data[: int(sizes[0])].removesuffix(b"\r\n\r\n")
        log.log(logs.TRACE, "%s - <<- MSG_PAYLOAD: [%s]", name, self._payload(data))

    def _payload(self, data: bytes) -> str:
        cut = self.payload_max
        if 0 < cut < len(data):
            return f'{go_quote(data[:cut])[:-1]}..."'
        return go_quote(data)

    def _line(self, name: str, way: str, text: str) -> None:
        log.log(logs.TRACE, "%s - %s [%s]", name, way, text)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _joined(op: str, *parts: bytes) -> str:
    return " ".join((op, *(_text(part) for part in parts if part)))


class Violations:
    """Logs violations by clients: up to a limit per second, then the number of further ones."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._begun_ns = 0
        self._said = self._unsaid = 0

    def publish(self, session: NatsSession, what: str, name: bytes) -> None:
        """`what`: Subject or Reply."""
        if self._may_speak():
            shown = go_quote(name)
            log.error(
                "%s - Publish Violation - %s, %s %s", who(session), user(session), what, shown
            )

    def subscribe(
        self, session: NatsSession, subject: bytes, queue: bytes, sid: bytes, more: str = ""
    ) -> None:
        """`more`: the kind of violation."""
        if self._may_speak():
            names = f"Subject {go_quote(subject)}"
            if queue:
                names += f", Queue: {go_quote(queue)}"
            log.error(
                "%s - Subscription Violation%s - %s, %s, SID %s",
                *(who(session), more, user(session), names, _text(sid)),
            )

    def removed(self, session: NatsSession, subject: bytes, sid: bytes) -> None:
        """A subscription ended with its permission."""
        if self._may_speak():
            names = go_quote(subject), go_quote(sid)
            log.info("Removed sub %s (sid %s) for %s - not authorized", *names, user(session))

    def other(self, session: NatsSession, level: int, text: str) -> None:
        """Log any other error that a client can cause arbitrarily often."""
        if self._may_speak():
            log.log(level, "%s - %s", who(session), text)

    def _may_speak(self) -> bool:
        now_ns = self._clock()
        if now_ns - self._begun_ns >= SECOND:
            if self._unsaid:
                log.error("%d more errors of clients", self._unsaid)
            self._begun_ns = now_ns
            self._said = self._unsaid = 0
        if self._said >= limits.NATS_VIOLATIONS_LOGGED:
            self._unsaid += 1
            return False
        self._said += 1
        return True


def user(session: NatsSession) -> str:
    """The user as named in the log."""
    options, identity = session.options, session.identity
    if options is None:
        return 'User "N/A"'
    if options.nkey:
        return f"Nkey {go_quote(options.nkey.encode())}"
    # A name without a password may be a token.
    if options.user and (options.password or (identity and identity.key.startswith("user:"))):
        return f"User {go_quote(options.user.encode())}"
    if options.jwt and identity is not None:
        return f"JWT User {go_quote(identity.user.encode())}"
    return f"Token {REDACTED}" if options.token else 'User "N/A"'
