"""The connections of one HTTP listener: limits of their number and of their time.

    connection made [-> handshake] -> header -> request -> idle -> header -> ...

A connection counts from its acceptance, so those that never complete a handshake count as well. A
header has a limited size and must be complete in time, from its first byte (the first header: from
the acceptance). A body must arrive at a minimum rate, an answer must be read, and the time between
requests is limited. One timer checks all connections once a second, so a request needs none.

A client may end its side after its requests (`nc -N`). Those that are complete are answered, as by
Go's servers; but a client that has closed the connection looks the same, so not for long.

At the limit, the connection that has been idle for the longest is closed for a new one; if all of
them have requests in progress, the new one is closed. So idle clients take neither this listener
nor the process's open files from active ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import resource
import time
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast

from broker.base.units import SECOND
from broker.net import errors, limits
from broker.net.listener import descriptor, files_are_short
from broker.net.upgrade import not_http_answer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Generator

    from aiohttp.streams import StreamReader

    from broker.net.http.config import HttpConfig

HEADER, REQUEST, IDLE = range(3)


def connections_max(settings: HttpConfig) -> int:
    """The maximum of connections of one listener: configured, or a share of the open files."""
    if settings.max_connections:
        return settings.max_connections
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return limits.HTTP_CONNECTIONS_MAX
    share = files // limits.HTTP_FILES_DIVISOR
    return min(max(share, limits.HTTP_CONNECTIONS_MIN), limits.HTTP_CONNECTIONS_MAX)


class HttpConnections:
    """The connections of one HTTP listener, with their limit and time-outs. Needs a running loop
    from the first connection on."""

    def __init__(self, settings: HttpConfig, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.settings = settings
        self.now_ns = now_ns
        self.most = connections_max(settings)
        self.open: dict[HttpConnection, None] = {}
        # Idle connections, the longest idle one first. Unlike in a plain dict, finding the first
        # one does not skip removed ones.
        self._quiet: OrderedDict[HttpConnection, None] = OrderedDict()
        self.dropped = 0  # closed by this side: too slow, or above the limit
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: HttpConnection, number: int = -1) -> bool:
        """Add a connection with the descriptor `number`; False: the limit is reached."""
        full = len(self.open) >= self.most or files_are_short(number, http=True)
        if full and not self._make_room():
            self.dropped += 1
            return False
        self.open[connection] = self._quiet[connection] = None
        if self._timer is None:
            self._check_later()
        return True

    def remove(self, connection: HttpConnection) -> None:
        """Remove a connection."""
        self._forget(connection)
        if not self.open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self) -> bool:
        # An answer may still be being written when the request has ended. Only the first few are
        # checked and moved to the end: a flood must not scan all of them for each new connection.
        for connection in list(itertools.islice(self._quiet, limits.HTTP_ROOM_LOOKS)):
            if not connection.is_writing:
                self.drop(connection)
                return True
            self._quiet.move_to_end(connection)
        return False

    def state_changed(self, connection: HttpConnection) -> None:
        """A connection has entered another state. It may be dropped while it has no request."""
        self._quiet.pop(connection, None)
        if connection.state != REQUEST and connection in self.open:
            self._quiet[connection] = None

    def drop(self, connection: HttpConnection) -> None:
        """Close a connection at once."""
        self.dropped += 1
        self._forget(connection)  # not counted any more, although it ends a turn later
        connection.abort()

    def _forget(self, connection: HttpConnection) -> None:
        self.open.pop(connection, None)
        self._quiet.pop(connection, None)

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.HTTP_LOOK / SECOND, self._check)

    def _check(self) -> None:
        self._timer = None
        self.close_late()
        if self.open:
            self._check_later()

    def close_late(self) -> None:
        """Close the connections that have timed out."""
        now_ns = self.now_ns()
        for connection in [one for one in self.open if one.is_late(now_ns)]:
            self.drop(connection)


@types.coroutine
def _continue(
    coroutine: Coroutine[Any, Any, asyncio.Transport | None], first: Any
) -> Generator[Any, Any, asyncio.Transport | None]:
    """Continue a coroutine that was started, and waits for the future `first`."""
    try:
        yield first
        safe: asyncio.Transport | None = yield from coroutine
        return safe
    finally:
        coroutine.close()


class HttpConnection(asyncio.Protocol):
    """One connection, between the socket and the protocol that parses and answers."""

    def __init__(
        self,
        connections: HttpConnections,
        inner: asyncio.Protocol,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """With a `context` it begins with a TLS handshake."""
        self.connections = connections
        self.state = HEADER
        self.since_ns = connections.now_ns()  # since when it is in this state
        self._inner: asyncio.Protocol | None = inner
        self._context = context
        self._in_handshake = context is not None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""  # input received before the end of the handshake was reported
        self._transport: asyncio.Transport | None = None
        self._rest = b""  # input that is parsed in the next turn
        self._head = 0  # bytes of a header that is not complete yet
        self._body: StreamReader | None = None  # of the current request
        self._until_left = False  # the current answer
        self._received = 0  # of that body
        self._unsent = 0  # of the answer, at the last check
        self._stuck_ns = 0  # since when the peer has read nothing; 0: the transport is not full
        self._ended_ns = 0  # when the peer ended its side, or last read after it; 0: it has not

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        if not self.connections.add(self, descriptor(transport)):
            self._inner = None
            self._transport.abort()
            return
        assert self._inner is not None
        if self._context is None:
            self._inner.connection_made(transport)
            return
        loop = asyncio.get_running_loop()
        handshake = loop.start_tls(
            self._transport,
            self,
            self._context,
            server_side=True,
            ssl_handshake_timeout=limits.HTTP_TLS_TIMEOUT / SECOND,
        )
        # Its first step is done at once: a task would start later, when the first bytes may already
        # have been passed to this protocol instead of TLS.
        first = handshake.send(None)
        self._handshake = loop.create_task(self._do_handshake(handshake, first))

    async def _do_handshake(
        self, handshake: Coroutine[Any, Any, asyncio.Transport | None], first: Any
    ) -> None:
        safe: asyncio.Transport | None = None
        try:
            with contextlib.suppress(OSError):  # the peer may still read the rest
                safe = await _continue(handshake, first)
        finally:
            self._handshake = None
            if safe is None:
                self.abort()
                self.connection_lost(None)
        if safe is None or self._transport is None or self._inner is None:
            return  # it was closed meanwhile
        self._transport = safe
        self._in_handshake = False
        self._enter(HEADER)
        self._inner.connection_made(safe)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        if self._in_handshake:
            self._early += data
            return
        if self.state == IDLE:
            self._enter(HEADER)
        elif self.state == REQUEST:
            self._received += len(data)
        if self._rest:
            self._rest += data  # the inner protocol has resumed reading
            self._pause()
        elif len(data) <= limits.HTTP_PIECE:
            self._parse(data)
        else:
            self._parse_pieces(data)

    def _parse(self, data: bytes) -> None:
        if self._inner is None or self._transport is None or self._transport.is_closing():
            return
        self._inner.data_received(data)
        if self.state == HEADER and not self._is_answering():
            self._head += len(data)
            if self._head > limits.HTTP_HEAD_MAX and self._transport is not None:
                self._transport.write(not_http_answer(errors.HTTP_TOO_LARGE))
                self._transport.close()

    def _parse_pieces(self, data: bytes) -> None:
        """Parse for HTTP_TURN, and the rest of the data in the next turn."""
        stop_ns = self.connections.now_ns() + limits.HTTP_TURN
        for at in range(0, len(data), limits.HTTP_PIECE):
            if at and self.connections.now_ns() >= stop_ns:
                self._rest = data[at:]
                self._pause()
                asyncio.get_running_loop().call_soon(self._parse_rest)
                return
            self._parse(data[at : at + limits.HTTP_PIECE])

    def _parse_rest(self) -> None:
        rest, self._rest = self._rest, b""
        if self._transport is None or self._transport.is_closing():
            return
        self._parse_pieces(rest)
        # aiohttp's own: it has paused reading itself while the handler is slower than the peer
        paused = getattr(self._general, "_reading_paused", False) or (
            getattr(self._general, "_buffer_paused", False)
        )
        if not (self._rest or paused):
            with contextlib.suppress(RuntimeError):  # it is closing
                self._transport.resume_reading()

    def _pause(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):
                self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        if self._inner is None or self._context is not None:  # with TLS, it closes in any case
            return None
        if self._until_left or not self._is_answering():
            return None
        self._ended_ns = self.connections.now_ns()
        self._close_after_last()
        return True

    def _is_answering(self) -> bool:
        """Whether a request is complete, and its answer is not."""
        if self.state == REQUEST and self._body is not None and not self._body.is_eof():
            return False
        if self._general is None:
            return False
        # aiohttp's own: `_waiter` is for the next request
        waiter = getattr(self._general, "_waiter", None)
        if waiter is not None:
            return bool(waiter.done())
        return bool(getattr(self._general, "_messages", ())) or self._has_started()

    def _has_started(self) -> bool:
        """Whether aiohttp's task has begun. Until it waits for its first request, `_waiter` is None
        as well."""
        task = getattr(self._general, "_task_handler", None)
        return task is None or inspect.getcoroutinestate(task.get_coro()) != "CORO_CREATED"

    def _close_after_last(self) -> None:
        """Close when the request in progress is answered, unless more have been received."""
        general = self._general
        if general is not None and not general._messages:
            general.close()

    @property
    def _general(self) -> Any:
        """aiohttp's protocol; None if a front has not needed it."""
        return getattr(self._inner, "general", self._inner)

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._unsent = self._transport.get_write_buffer_size()
            self._stuck_ns = self.connections.now_ns()
        if self._inner is not None and not self._in_handshake:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._stuck_ns = 0
        if self._inner is not None and not self._in_handshake:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.connections.remove(self)
        inner, self._inner = self._inner, None
        if inner is not None and not self._in_handshake:
            inner.connection_lost(exc)

    @property
    def is_writing(self) -> bool:
        """Whether part of an answer is not sent yet."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close when the answers are written."""
        if self._transport is not None:
            self._transport.close()

    # --- called by the handlers

    def begin(self, body: StreamReader) -> None:
        """A header is complete; `body` may still be incomplete."""
        self._enter(REQUEST)
        self._body = body
        self._received = 0
        if not self._ended_ns:
            return
        if body.is_eof():
            self._close_after_last()
        else:
            self.abort()  # the rest will never come

    def continue_until_left(self) -> None:
        """The answer in progress has no end: it stops when the peer ends its side."""
        self._until_left = True

    def end(self) -> None:
        """The request is answered."""
        self._enter(IDLE)
        self._body = None
        self._until_left = False

    def _enter(self, state: int) -> None:
        self.state = state
        self._head = 0
        self.since_ns = self.connections.now_ns()
        self.connections.state_changed(self)

    # --- time

    def is_late(self, now_ns: int) -> bool:
        """Whether it has timed out."""
        if self._stuck_ns and self._transport is not None:
            unsent = self._transport.get_write_buffer_size()
            if unsent != self._unsent:
                self._unsent, self._stuck_ns = unsent, now_ns
            return now_ns - self._stuck_ns >= limits.HTTP_WRITE_TIMEOUT
        if self._ended_ns:
            if self.is_writing:
                self._ended_ns = now_ns
            return now_ns - self._ended_ns >= limits.HTTP_ENDED_GRACE
        if self._in_handshake:  # handshakes have their own timer
            return False
        quiet_ns = now_ns - self.since_ns
        if self.state == HEADER:
            return quiet_ns >= self.connections.settings.header_timeout_ns
        if self.state == IDLE:
            return quiet_ns >= self.connections.settings.idle_timeout_ns
        return self._is_body_late(now_ns)

    def _is_body_late(self, now_ns: int) -> bool:
        if self._body is None or self._body.is_eof() or self._transport is None:
            return False
        if not self._transport.is_reading():  # it waits for this side, which does not count
            self.since_ns, self._received = now_ns, 0
            return False
        over_ns = now_ns - self.since_ns - limits.HTTP_BODY_GRACE
        return self._received * SECOND < over_ns * limits.HTTP_BODY_RATE
