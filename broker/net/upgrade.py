"""An HTTP request that turns a connection into something else: WebSocket.

    accepted -> Knock (collects one request) -> refused, or handed on with its transport

Nobody knocks for ever: each request has its time, and the one that waits longest makes room when
too many do. Source of the answers: Go's net/http, in front of nats-server websocket.go.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from broker import errors, limits

if TYPE_CHECKING:
    from collections.abc import Callable

_END: Final = b"\r\n\r\n"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class NotUpgraded(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is refused; the text is for the log."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class NotHttp(Exception):  # noqa: N818 - an answer, not a fault
    """What came is no request; the text goes to the peer."""


@dataclass(frozen=True, slots=True)
class Request:
    """What stands before the body."""

    method: str
    path: str
    headers: dict[str, list[str]]  # names in lower case

    def first(self, name: str) -> str:
        """The first value of a header; empty when there is none."""
        return self.headers.get(name, [""])[0]

    def says(self, name: str, word: str) -> bool:
        """Whether one of a header's values, divided by commas, is this word."""
        return any(
            part.strip(" \t").lower() == word
            for value in self.headers.get(name, [])
            for part in value.split(",")
        )

    def cookie(self, name: str) -> str:
        """A cookie's value; empty when there is none."""
        for value in self.headers.get("cookie", []):
            for pair in value.split(";"):
                key, equals, text = pair.strip().partition("=")
                if equals and key == name:
                    return text[1:-1] if text[:1] == text[-1:] == '"' and len(text) > 1 else text
        return ""


def read_request(head: bytes) -> Request:
    """What these bytes, up to the empty line, ask for; NotHttp."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not (_NAME.fullmatch(method) and target) or version not in {"HTTP/1.0", "HTTP/1.1"}:
        raise NotHttp(errors.HTTP_BAD_REQUEST)
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not (colon and _NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise NotHttp(errors.HTTP_BAD_REQUEST)
        headers.setdefault(name.lower(), []).append(value.strip(" \t"))
    hosts = headers.get("host", [])
    if not hosts and version == "HTTP/1.1":
        raise NotHttp(errors.HTTP_NO_HOST)
    if len(hosts) > 1:
        raise NotHttp(errors.HTTP_HOSTS)
    return Request(method, target.partition("?")[0], headers)


def refusal(status: int) -> bytes:
    """The answer to a request that is not served."""
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


def no_http(text: str) -> bytes:
    """The answer to what is no request."""
    return (
        f"HTTP/1.1 {text}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Connection: close\r\n\r\n{text}"
    ).encode()


class Knocks:
    """Those whose request has not come in full."""

    def __init__(
        self, come_in: Callable[[Request, asyncio.Transport], None], patience_ns: int
    ) -> None:
        """`come_in` takes the transport over, or raises NotUpgraded."""
        self.come_in = come_in
        self.patience_ns = patience_ns
        self.refused: Callable[[Any, str], None] = lambda _peer, _reason: None
        self._waiting: dict[Knock, None] = {}  # in the order they came

    def __call__(self) -> Knock:
        return Knock(self)

    def join(self, knock: Knock) -> None:
        """One more."""
        if len(self._waiting) >= limits.WEBSOCKET_KNOCKS_MAX:
            next(iter(self._waiting)).give_up()
        self._waiting[knock] = None

    def leave(self, knock: Knock) -> None:
        """One that is done, or gone."""
        self._waiting.pop(knock, None)

    def end(self) -> None:
        """All of them."""
        for knock in list(self._waiting):
            knock.give_up()


class Knock(asyncio.Protocol):
    """One request."""

    def __init__(self, knocks: Knocks) -> None:
        self._knocks = knocks
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        patience_s = self._knocks.patience_ns / limits.SECOND
        self._timer = asyncio.get_running_loop().call_later(patience_s, self.give_up)
        self._knocks.join(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._done()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return  # answered already
        searched = max(0, len(self._head) - len(_END) + 1)
        self._head += data
        at = self._head.find(_END, searched)
        if at < 0:
            if len(self._head) > limits.WEBSOCKET_REQUEST_MAX:
                self._say(no_http(errors.HTTP_TOO_LARGE))
            elif self._head[:1].isspace() or b"\r\n" not in data:
                return
            elif not _NAME.match(self._head.decode("latin-1")):
                self._say(no_http(errors.HTTP_BAD_REQUEST))
            return
        peer = transport.get_extra_info("peername")
        early = len(self._head) > at + len(_END)
        try:
            request = read_request(bytes(self._head[:at]))
            if early and request.method == "GET":
                self._knocks.refused(peer, errors.WEBSOCKET_EARLY)
                self._say(b"")
                return
            self._knocks.come_in(request, transport)
        except NotHttp as no:
            self._say(no_http(str(no)))
        except NotUpgraded as no:
            self._knocks.refused(peer, str(no))
            self._say(refusal(no.status))
        else:
            self._done()

    def _say(self, last: bytes) -> None:
        transport = self._transport
        self._done()
        assert transport is not None
        if last:
            transport.write(last)
        transport.close()

    def give_up(self) -> None:
        """Go away without a word."""
        transport = self._transport
        self._done()
        if transport is not None:
            transport.abort()

    def _done(self) -> None:
        self._transport = None
        self._head = bytearray()
        self._knocks.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
