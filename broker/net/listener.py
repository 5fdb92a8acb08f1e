"""Listeners: their connections, and what all connections of one loop share."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from broker.base.units import SECOND
from broker.net import limits, umask
from broker.net.conn import Conn
from broker.net.sockets import bound, is_answered, opening, remove_socket
from broker.net.tls import Handshakes
from broker.runtime.buffers import ChunkPool, InBuf
from broker.runtime.busy_poll import BusyPoll
from broker.runtime.processors import usable_processors
from broker.runtime.sender import Sender
from broker.runtime.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from broker.runtime.interfaces import Session

FILES = Path("/proc/self/fd")
_NS_PER_MS = 1_000_000
log = logging.getLogger("broker.net")


def open_files() -> int:
    """The number of open files of this process. OSError: the system does not say."""
    # Since Linux 6.2 the size of the folder; listing ten thousand files takes 10 ms and more.
    size = FILES.stat().st_size
    return size or sum(1 for _ in FILES.iterdir()) - 1  # without that of the listing


def files_are_short(number: int = -1, *, http: bool = False) -> bool:
    """Whether only the descriptors reserved for the logs were left when the descriptor `number` was
    opened: it got the lowest free number, which is about the number of open files. -1: now.

    `http`: the connection may take one of those that other listeners leave to HTTP. Otherwise
    clients of other protocols could make health checks and metrics fail.

    A new connection is judged by its own: the loop accepts many before it reports the first, and
    those that are closed then leave low numbers free.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return False
    kept = max(limits.OPEN_FILES_KEPT_MIN, most // limits.OPEN_FILES_KEPT_DIVISOR)
    kept = min(kept, limits.OPEN_FILES_KEPT_MAX)
    if not http:
        kept += kept // limits.OPEN_FILES_HTTP_DIVISOR
    if number < 0:
        try:
            number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return error.errno in {errno.EMFILE, errno.ENFILE}
        os.close(number)
    return number >= most - kept


def descriptor(transport: asyncio.BaseTransport) -> int:
    """The descriptor of a connection; -1: unknown."""
    socket = transport.get_extra_info("socket")
    return -1 if socket is None else int(socket.fileno())


class Runtime:
    """The state that all listeners of one loop share; it is created while that loop runs."""

    def __init__(self, busy_poll_ns: int = limits.BUSY_POLL) -> None:
        """`busy_poll_ns`: how long the loop looks for the next event before it sleeps; 0 = it
        sleeps at once."""
        self.loop = asyncio.get_running_loop()
        self.turn = Turn(self.loop.call_soon, self._call_at_ns)
        self._use_processors(busy_poll_ns)
        self.pool = ChunkPool(limits.CHUNK_SMALL, limits.CHUNK_LARGE, limits.CHUNKS_POOLED_MAX)
        self.shared = InBuf(limits.RECEIVE_BUFFER)
        self.plain = InBuf(limits.RECEIVE_BUFFER)  # output of filters
        self.handshakes = Handshakes(self.loop.call_soon)
        self._was_short_of_files = False

    def _use_processors(self, busy_poll_ns: int) -> None:
        # uvloop offers the epoll descriptor for its own tests only. Without it, only speed is lost.
        descriptor = getattr(self.loop, "_get_backend_id", None)
        if descriptor is None:
            return
        processors = usable_processors()
        if busy_poll_ns and processors >= limits.BUSY_POLL_PROCESSORS:
            self.turn.busy_poll = BusyPoll(descriptor(), busy_poll_ns)
        if processors >= limits.SENDER_PROCESSORS:
            self.turn.sender = Sender(self.loop, descriptor())

    def stop(self) -> None:
        """Stop the threads beside the loop; open connections continue."""
        if self.turn.sender is not None:
            self.turn.sender.stop()

    @property
    def busy_poll_seconds(self) -> float:
        """Time in which the loop has looked for events instead of sleeping."""
        busy_poll = self.turn.busy_poll
        return 0.0 if busy_poll is None else busy_poll.waited_ns / SECOND

    def short_of_files(self, number: int) -> bool:
        """Whether a new connection, with the descriptor `number`, must be closed, so that the logs
        can open their files."""
        short = files_are_short(number)
        if short and not self._was_short_of_files:
            self._was_short_of_files = True
            log.error("too many open files: new connections are closed at once")
            self._check_files_later()
        return short

    def _check_files_later(self) -> None:
        self.loop.call_later(limits.OPEN_FILES_LOOK / SECOND, self._check_files)

    def _check_files(self) -> None:
        # Once a second, not for each connection: a flood must not fill the log.
        if files_are_short():
            self._check_files_later()
            return
        self._was_short_of_files = False
        log.info("files can be opened again")

    def _call_at_ns(self, due_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        # the loop counts whole milliseconds: rounded up, so that the timer is not early
        wait_ms = -((time.monotonic_ns() - due_ns) // _NS_PER_MS)
        return self.loop.call_later(max(wait_ms, 0) / 1000, callback)


class Listener(ABC):
    """One listening address, with its connections."""

    def __init__(self, runtime: Runtime, listen: tuple[str, int], out_limit: int) -> None:
        """`out_limit`: pending output of one connection, in bytes."""
        self.runtime = runtime
        self.listen = listen
        self.out_limit = out_limit
        self.conns: set[Conn] = set()
        self.total_connections = 0
        self._servers: list[asyncio.Server] = []  # one server for each socket
        self._address: tuple[str, int] | None = None
        self._emptied = asyncio.Event()
        self._emptied.set()

    @abstractmethod
    def new_session(self) -> Session:
        """Create the session of a new connection."""

    @property
    def address(self) -> tuple[str, int]:
        """The address, with the actual port; also after closing."""
        return self._address or self.listen

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self.conns)

    async def open(self) -> None:
        """Listen. ListenError: the address is in use, or not one of this host."""
        with opening(self.listen):
            await self._open(*self.listen)

    async def _open(self, host: str, port: int) -> None:
        if port == limits.UNIX_SOCKET_PORT:
            await self._open_unix(host)
            return
        sockets = bound(host, port)
        self._address = (host, sockets[0].getsockname()[1])
        try:
            for one in sockets:
                server = await self.runtime.loop.create_server(
                    self._accept, sock=one, backlog=limits.ACCEPT_BACKLOG
                )
                self._servers.append(server)
        except OSError:  # another process was just starting to listen there
            await self.close()
            for one in sockets:
                one.close()
            raise

    async def _open_unix(self, path: str) -> None:
        if is_answered(path):  # otherwise the file is a leftover, and is replaced
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
        self._servers.append(
            await self.runtime.loop.create_unix_server(
                self._accept, path, backlog=limits.ACCEPT_BACKLOG
            )
        )
        umask.widen(Path(path), umask.SOCKET)
        self._address = (path, limits.UNIX_SOCKET_PORT)

    def _accept(self) -> Conn:
        rt = self.runtime
        return Conn(self, self.new_session(), rt.shared, rt.turn, rt.pool, self.out_limit)

    def connection_opened(self, conn: Conn) -> None:
        """A connection was accepted."""
        self.total_connections += 1
        self.conns.add(conn)
        self._emptied.clear()
        if self.runtime.short_of_files(conn.fd):
            self.runtime.loop.call_soon(conn.abort)

    def connection_closed(self, conn: Conn) -> None:
        """A connection has ended."""
        self.conns.discard(conn)
        if not self.conns:
            self._emptied.set()

    async def close(self) -> None:
        """Stop accepting; connections stay."""
        while self._servers:
            self._servers.pop().close()
            if self.listen[1] == limits.UNIX_SOCKET_PORT:
                remove_socket(self.listen[0])

    async def drain(self, grace_ns: int = limits.CLOSE_GRACE) -> None:
        """Stop accepting, let each connection write its pending output, close all."""
        await self.close()
        self._end(self.conns, lambda conn: conn.close())
        try:
            await asyncio.wait_for(self._emptied.wait(), grace_ns / SECOND)
        except TimeoutError:
            self._end(self.conns, lambda conn: conn.abort())
            await self._emptied.wait()

    @staticmethod
    def _end(conns: Collection[Conn], act: Callable[[Conn], None]) -> None:
        for conn in list(conns):
            act(conn)
