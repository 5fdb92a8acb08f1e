"""GET /bulk/v1/range/{topic}: records as they stand in their file, within one frame."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from aiohttp import web

from broker.base.units import COUNT_MAX, SECOND, SEQ_MAX
from broker.bulk import errors, limits
from broker.bulk.access import READ
from broker.bulk.compression import compressed, encoding_of
from broker.bulk.read.topics import bounds
from broker.bulk.responses import RefusedError, incarnation_of, number
from broker.engine.bulk.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.bulk.app import BulkDoor
    from broker.engine.log.log import Log

FRAME_TYPE = "application/vnd.twinwire.range"
Part = bytes | memoryview


class RangePages:
    """The handler, and what was sent."""

    def __init__(self, door: BulkDoor) -> None:
        self.door = door
        self.ranges = 0
        self.records = 0
        self.bytes = 0  # of frames, before they are compressed
        self.damaged = 0  # bytes that turned out not to read
        self.cut_off = 0  # readers that took nothing for too long

    async def range(self, request: web.Request) -> web.StreamResponse:
        """Records of [start, end), as many as fit."""
        name = request.match_info["topic"]
        caller = self.door.caller(request)
        caller.need(READ, name)
        start = number(request, "start", None, 0, SEQ_MAX)
        end = number(request, "end", SEQ_MAX, 0, SEQ_MAX)
        wanted = number(request, "max_bytes", limits.BULK_FRAME_BYTES, 1, COUNT_MAX)
        wanted = min(wanted, limits.BULK_FRAME_BYTES_MAX)
        incarnation = incarnation_of(request.query.get("inc"))
        self._begin(name, start, incarnation)  # what is wrong is said before anybody waits
        async with self.door.traffic.place(caller.name, wanted):
            found, head = await self._read(name, start, end, wanted, incarnation)
            parts: list[Part] = [head, found.view(), bytes(found.padding)]
            self.ranges += 1
            self.records += found.count
            self.bytes += sum(len(part) for part in parts)
            headers = {"Content-Type": FRAME_TYPE}
            encoding = encoding_of(request.headers.get("Accept-Encoding", ""))
            if encoding is not None:
                headers["Content-Encoding"] = encoding
                parts = [await self.door.in_thread(compressed, encoding, found, head)]
            return await self._send(request, parts, headers)

    def _begin(self, name: str, start: int, incarnation: str | None) -> Log:
        """The log, if this can be read of it. RefusedError."""
        log = self.door.log(name)
        if incarnation not in (None, log.log_id.hex()):
            facts: dict[str, object] = {"incarnation": log.log_id.hex()}
            raise RefusedError(errors.BULK_INCARNATION, facts, incarnation=log.log_id.hex())
        first, behind = bounds(log)
        if start < first:
            raise RefusedError(errors.BULK_TRIMMED, {"first": first}, first=first)
        if start > behind:
            raise RefusedError(errors.BULK_BEYOND, {"next": behind}, next=behind)
        return log

    async def _read(
        self, name: str, start: int, end: int, wanted: int, incarnation: str | None
    ) -> tuple[Range, bytes]:
        problem: OSError | None = None
        for _ in range(limits.BULK_DROPPED_TRIES):
            log = self._begin(name, start, incarnation)
            size = wanted if log.folder else min(wanted, limits.BULK_MEMORY_BYTES_MAX)
            found = Range(log, start, end, size)
            try:
                head = await self.door.in_thread(found.read)
            except OSError as failed:
                problem = failed
                if failed.errno == errno.ENOENT:
                    continue  # dropped meanwhile: what is there now?
                break
            if not log.deleted:
                self.damaged += found.learn(log)
                return found, head
            incarnation = log.log_id.hex()  # nobody who began with this one gets another
        reason = "it changes" if problem is None else problem.strerror or str(problem)
        raise RefusedError(errors.BULK_UNREADABLE, reason=reason) from problem

    async def _send(
        self, request: web.Request, parts: Sequence[Part], headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        response.content_length = sum(len(part) for part in parts)
        await response.prepare(request)
        try:
            for piece in slices(parts):
                await self.door.traffic.turn()
                async with asyncio.timeout(limits.BULK_STALL / SECOND):
                    await response.write(piece)
            await response.write_eof()
        except TimeoutError:
            self.cut_off += 1
            if request.transport is not None:
                request.transport.abort()
        return response


def slices(parts: Sequence[Part]) -> Iterator[memoryview]:
    """The parts in pieces that one turn of the loop can hand to a socket."""
    step = limits.BULK_SLICE_BYTES
    for part in parts:
        whole = memoryview(part)
        for at in range(0, len(whole), step):
            yield whole[at : at + step]
