"""The HTTP request that upgrades a connection to WebSocket.

    accepted -> (TLS) -> HandoverSession (one request) -> refused, or handed over to another session

Each request must be complete in time; if too many are incomplete, the oldest is dropped. Source of
the answers: Go's net/http, and nats-server websocket.go.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from broker.base.values import dataclass
from broker.net import errors, limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.net.handover import HandoverSession

HEAD_END: Final = b"\r\n\r\n"
_VERSIONS: Final = frozenset({"HTTP/1.0", "HTTP/1.1"})
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class NotUpgraded(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is refused; the text is for the log."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class NotHttp(Exception):  # noqa: N818 - an answer, not a fault
    """The bytes are not a request; the text is sent to the peer."""


@dataclass(frozen=True, slots=True)
class Head:
    """The request line or status line, and the headers."""

    headers: dict[str, list[str]]  # names in lower case

    def first(self, name: str) -> str:
        """The first value of a header; empty if there is none."""
        return self.headers.get(name, [""])[0]

    def has_word(self, name: str, word: str) -> bool:
        """Whether one of a header's values, separated by commas, is this word."""
        return any(
            part.strip(" \t").lower() == word
            for value in self.headers.get(name, [])
            for part in value.split(",")
        )


@dataclass(frozen=True, slots=True)
class Request(Head):
    """The request line and its headers."""

    method: str
    path: str

    def cookie(self, name: str) -> str:
        """The value of a cookie, the last one of several; empty if there is none."""
        found = ""
        for value in self.headers.get("cookie", []):
            for pair in value.split(";"):
                key, equals, text = pair.strip().partition("=")
                if equals and key == name:
                    quoted = text[:1] == text[-1:] == '"' and len(text) > 1
                    found = text[1:-1] if quoted else text
        return found


@dataclass(frozen=True, slots=True)
class Answer(Head):
    """The head of an answer."""

    status: int


def read_answer(head: bytes) -> Answer:
    """Parse an answer, up to the empty line. NotHttp."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version not in _VERSIONS or not (status.isascii() and status.isdigit()):
        raise NotHttp(errors.HTTP_BAD_REQUEST)
    return Answer(_headers(lines), int(status))


def read_request(head: bytes) -> Request:
    """Parse a request, up to the empty line. NotHttp."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not (_NAME.fullmatch(method) and target) or version not in _VERSIONS:
        raise NotHttp(errors.HTTP_BAD_REQUEST)
    headers = _headers(lines)
    hosts = headers.get("host", [])
    if not hosts and version == "HTTP/1.1":
        raise NotHttp(errors.HTTP_NO_HOST)
    if len(hosts) > 1:
        raise NotHttp(errors.HTTP_HOSTS)
    return Request(headers, method, target.partition("?")[0])


def _headers(lines: list[str]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not (colon and _NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise NotHttp(errors.HTTP_BAD_REQUEST)
        headers.setdefault(name.lower(), []).append(value.strip(" \t"))
    return headers


def refusal(status: int) -> bytes:
    """The answer to a refused request."""
    from email.utils import formatdate
    from http import HTTPStatus

    text = HTTPStatus(status).phrase
    return (
        f"HTTP/1.1 {status} {text}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        "Sec-Websocket-Version: 13\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"Date: {formatdate(usegmt=True)}\r\n"
        f"Content-Length: {len(text) + 1}\r\n"
        "Connection: close\r\n"
        f"\r\n{text}\n"
    ).encode()


def not_http_answer(text: str) -> bytes:
    """The answer to bytes that are not a request."""
    return (
        f"HTTP/1.1 {text}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Connection: close\r\n\r\n{text}"
    ).encode()


class PendingUpgrades:
    """Connections whose request is not complete yet."""

    def __init__(
        self,
        upgrade: Callable[[Request, HandoverSession], None],
        timeout_ns: int,
        secure: Callable[[HandoverSession], None] | None = None,
    ) -> None:
        """`upgrade` hands the connection over, or raises NotUpgraded. `secure` begins TLS."""
        self.upgrade = upgrade
        self.timeout_ns = timeout_ns
        self.secure = secure
        self.refused: Callable[[Any, str], None] = lambda _peer, _reason: None
        self.insecure: Callable[[Any, str], None] = lambda _peer, _cause: None
        self._waiting: dict[HandoverSession, None] = {}  # in the order of their acceptance

    def end(self) -> None:
        """Drop all of them."""
        for handover in list(self._waiting):
            self.timed_out(handover)

    # --- called by the sessions

    def opened(self, handover: HandoverSession) -> None:
        """A connection was accepted."""
        if self.secure is None:
            self._begin(handover)
        else:
            self.secure(handover)

    def secured(self, handover: HandoverSession, cause: str | None) -> None:
        """TLS is established, or failed with a cause."""
        if cause is None:
            self._begin(handover)
            return
        self.insecure(handover.link.peer, cause)
        handover.link.close()

    def _begin(self, handover: HandoverSession) -> None:
        if len(self._waiting) >= limits.WEBSOCKET_UPGRADES_MAX:
            self.timed_out(next(iter(self._waiting)))
        self._waiting[handover] = None
        handover.wait(self.timeout_ns)

    def received(self, handover: HandoverSession, data: bytes) -> None:
        """A part of the request was received."""
        head = handover.head
        searched = max(0, len(head) - len(HEAD_END) + 1)
        head += data
        at = head.find(HEAD_END, searched)
        if at < 0:
            if len(head) > limits.WEBSOCKET_REQUEST_MAX:
                self._answer_and_close(handover, not_http_answer(errors.HTTP_TOO_LARGE))
            elif head[:1].isspace() or b"\r\n" not in data:
                return
            elif not _NAME.match(head.decode("latin-1")):
                self._answer_and_close(handover, not_http_answer(errors.HTTP_BAD_REQUEST))
            return
        peer = handover.link.peer
        early = len(head) > at + len(HEAD_END)
        try:
            request = read_request(bytes(head[:at]))
            if early and request.method == "GET":
                self.refused(peer, errors.WEBSOCKET_EARLY)
                self._answer_and_close(handover, b"")
                return
            self.upgrade(request, handover)
        except NotHttp as no:
            self._answer_and_close(handover, not_http_answer(str(no)))
        except NotUpgraded as no:
            self.refused(peer, str(no))
            self._answer_and_close(handover, refusal(no.status))

    def _answer_and_close(self, handover: HandoverSession, last: bytes) -> None:
        self.done(handover)
        if last:
            handover.send(last)
        handover.link.close()

    def timed_out(self, handover: HandoverSession) -> None:
        """The request is not complete in time: close without an answer."""
        self.done(handover)
        handover.link.abort()

    def closed(self, handover: HandoverSession) -> None:
        """The connection has ended."""
        self.done(handover)

    def done(self, handover: HandoverSession) -> None:
        """Stop waiting for its request."""
        handover.head = bytearray()
        if self._waiting.pop(handover, self) is None:
            handover.wait(0)
