"""Admission control: limits what the bulk API does at once, so that live traffic is not slowed.

slot    permission to serve one range. Their number is limited in total, per client and by bytes.
        A request without a slot waits in a queue for a limited time
turn    permission to write one slice to a socket; one slice in each turn of the loop

This module also compresses frames for slow links, because that is work per range too.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections import Counter, deque
from typing import TYPE_CHECKING

from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.bulk import errors, limits
from broker.bulk.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.engine.bulk.ranges import Range


ZSTD = "zstd"
GZIP = "gzip"
_ENTRY = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?")
_GZIP_WINDOW = 31  # zlib's wbits for a gzip header and the largest window


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of what is served at once."""

    ranges_max: int = limits.BULK_RANGES_MAX
    client_max: int = limits.BULK_RANGES_CLIENT_MAX
    bytes_max: int = limits.BULK_PINNED_BYTES_MAX
    waiting_max: int = limits.BULK_WAITING_MAX
    wait_ns: int = limits.BULK_WAIT


@dataclass(slots=True)
class _Waiting:
    client: str
    size: int
    admitted: asyncio.Future[None]


class Admission:
    """Ranges that are being served, and requests in the queue."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.active = 0
        self.bytes = 0
        self.refused = 0
        self._clients: Counter[str] = Counter()
        self._queue: deque[_Waiting] = deque()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._serving = False

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @contextlib.asynccontextmanager
    async def slot(self, client: str, size: int) -> AsyncIterator[None]:
        """A slot for a range of `size` bytes. RefusedError: none was free in time."""
        await self._acquire(client, size)
        try:
            yield
        finally:
            self._release(client, size)

    def _fits(self, client: str, size: int) -> bool:
        return (
            self.active < self.bounds.ranges_max
            and self._clients[client] < self.bounds.client_max
            and (self.bytes + size <= self.bounds.bytes_max or not self.bytes)
        )

    def _reserve(self, client: str, size: int) -> None:
        self.active += 1
        self.bytes += size
        self._clients[client] += 1

    async def _acquire(self, client: str, size: int) -> None:
        if not self._queue and self._fits(client, size):
            self._reserve(client, size)
            return
        if len(self._queue) >= self.bounds.waiting_max:
            self.refused += 1
            raise RefusedError(errors.BULK_BUSY)
        entry = _Waiting(client, size, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        self._admit()
        try:
            async with asyncio.timeout(self.bounds.wait_ns / SECOND):
                await asyncio.shield(entry.admitted)
        except (TimeoutError, asyncio.CancelledError) as problem:
            if entry.admitted.done():
                if isinstance(problem, TimeoutError):
                    return  # admitted when the time ended
                self._release(client, size)
            else:
                self._queue.remove(entry)
            if not isinstance(problem, TimeoutError):
                raise
            self.refused += 1
            raise RefusedError(errors.BULK_BUSY) from None

    def _release(self, client: str, size: int) -> None:
        self.active -= 1
        self.bytes -= size
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
        self._admit()

    def _admit(self) -> None:
        """Admit waiting requests in order; a client at its own limit does not delay others."""
        for entry in list(self._queue):
            if self._clients[entry.client] >= self.bounds.client_max:
                continue
            if not self._fits(entry.client, entry.size):
                break
            self._queue.remove(entry)
            self._reserve(entry.client, entry.size)
            entry.admitted.set_result(None)

    async def turn(self) -> None:
        """Wait for permission to write one slice to a socket."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        self._turns.append(ready)
        if not self._serving:
            self._serving = True
            loop.call_soon(self._next_turn)
        await ready

    def _next_turn(self) -> None:
        while self._turns:
            ready = self._turns.popleft()
            if not ready.done():
                ready.set_result(None)
                break
        self._serving = bool(self._turns)
        if self._serving:
            asyncio.get_running_loop().call_soon(self._next_turn)


def encoding_of(accepted: str) -> str | None:
    """The encoding that an Accept-Encoding header prefers, zstd among equals; None: send the frame
    uncompressed."""
    weights = {}
    for entry in accepted.split(","):
        found = _ENTRY.fullmatch(entry)
        if found is not None:
            try:
                weights[found[1].lower()] = float(found[2] or 1)
            except ValueError:
                continue
    best = max((ZSTD, GZIP), key=lambda name: weights.get(name, 0))
    weight = weights.get(best, 0)
    return best if weight > 0 and weight >= weights.get("identity", 0) else None


def compressed(encoding: str, found: Range) -> memoryview:
    """The whole frame, compressed; runs on any thread. Large copies would hold up the loop: they
    are made with the interpreter lock."""
    whole = found.joined()
    if encoding == GZIP:
        packer = zlib.compressobj(limits.BULK_GZIP_LEVEL, wbits=_GZIP_WINDOW)
        view, packed = memoryview(whole), bytearray()
        for at in range(0, len(view), limits.BULK_GZIP_PIECE):
            packed += packer.compress(view[at : at + limits.BULK_GZIP_PIECE])
        packed += packer.flush()
        return memoryview(packed)
    from cramjam import zstd

    return memoryview(zstd.compress(whole, limits.BULK_ZSTD_LEVEL))
