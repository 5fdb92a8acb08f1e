"""GET /bulk/v1/range/{topic}: one frame with records in the form that they have on disk."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from aiohttp import web

from broker.base.units import COUNT_MAX, SECOND, SEQ_MAX
from broker.bulk import errors, limits
from broker.bulk.access import READ
from broker.bulk.admission import compressed, encoding_of
from broker.bulk.context import bounds
from broker.bulk.errors import RefusedError
from broker.bulk.read.sending import duplicate_socket, send_in_thread
from broker.bulk.responses import caller_of, incarnation_of, number
from broker.engine.bulk.background import Outgoing
from broker.engine.bulk.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.bulk.context import BulkContext
    from broker.bulk.stats import BulkStats
    from broker.engine.log.log import Log

FRAME_TYPE = "application/vnd.twinwire.range"
Part = bytes | memoryview


class RangeHandlers:
    """The handler, and counters of what it has sent."""

    def __init__(self, context: BulkContext) -> None:
        self.context = context
        self.ranges = 0
        self.records = 0
        self.bytes = 0  # of frames, before they are compressed
        self.damaged = 0  # bytes found damaged
        self.cut_off = 0  # requests whose client read nothing for too long

    def count(self, stats: BulkStats) -> None:
        """Fill in the counters."""
        stats.ranges, stats.records, stats.sent_bytes = self.ranges, self.records, self.bytes
        stats.damaged_bytes, stats.cut_off = self.damaged, self.cut_off

    async def range(self, request: web.Request) -> web.StreamResponse:
        """Records of [start, end), as many as fit into `max_bytes`."""
        name = request.match_info["topic"]
        caller = caller_of(request)
        caller.need(READ, name)
        start = number(request, "start", None, 0, SEQ_MAX)
        end = number(request, "end", SEQ_MAX, 0, SEQ_MAX)
        max_bytes = number(request, "max_bytes", limits.BULK_FRAME_BYTES, 1, COUNT_MAX)
        max_bytes = min(max_bytes, limits.BULK_FRAME_BYTES_MAX)
        incarnation = incarnation_of(request.query.get("inc"))
        self._begin(name, start, incarnation)  # rejected before it waits for a slot
        async with self.context.admission.slot(caller.name, max_bytes):
            found = await self._read(name, start, end, max_bytes, incarnation)
            await asyncio.sleep(0)  # let the loop handle live traffic, here and below
            parts: list[Part] = found.parts()
            self.ranges += 1
            self.records += found.count
            self.bytes += sum(len(part) for part in parts)
            headers = {"Content-Type": FRAME_TYPE}
            encoding = encoding_of(request.headers.get("Accept-Encoding", ""))
            if encoding is not None:
                headers["Content-Encoding"] = encoding
                parts = [await self.context.in_thread(compressed, encoding, found)]
            try:
                return await self._send(request, parts, headers)
            finally:
                parts.clear()
                self.context.background.release(found)

    def _begin(self, name: str, start: int, incarnation: str | None) -> Log:
        """The log, if it is this incarnation and has `start`. RefusedError."""
        log = self.context.log(name)
        if incarnation not in (None, log.log_id.hex()):
            facts: dict[str, object] = {"incarnation": log.log_id.hex()}
            raise RefusedError(errors.BULK_INCARNATION, facts, incarnation=log.log_id.hex())
        first, next_seq = bounds(log)
        if start < first and log.owner is None:  # of a stream, messages may be deleted anywhere
            raise RefusedError(errors.BULK_TRIMMED, {"first": first}, first=first)
        if start > next_seq:
            raise RefusedError(errors.BULK_BEYOND, {"next": next_seq}, next=next_seq)
        return log

    async def _read(
        self, name: str, start: int, end: int, max_bytes: int, incarnation: str | None
    ) -> Range:
        problem: OSError | None = None
        for _ in range(limits.BULK_DROPPED_TRIES):
            log = self._begin(name, start, incarnation)
            size = max_bytes if log.folder else min(max_bytes, limits.BULK_MEMORY_BYTES_MAX)
            found = Range(log, start, end, size)
            try:
                await self.context.background.read(found)
            except OSError as failed:
                problem = failed
                if failed.errno == errno.ENOENT:
                    continue  # the file was dropped meanwhile: check the bounds again
                break
            if found.is_disturbed(log):
                continue
            if not log.deleted:
                self.damaged += found.add_to_index(log)
                return found
            incarnation = log.log_id.hex()  # a request never mixes two incarnations
        reason = "it changes all the time" if problem is None else problem.strerror or str(problem)
        raise RefusedError(errors.BULK_UNREADABLE, reason=reason) from problem

    async def _send(
        self, request: web.Request, parts: Sequence[Part], headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        response.content_length = sum(len(part) for part in parts)
        await response.prepare(request)
        await asyncio.sleep(0)
        try:
            await self._send_parts(request, response, parts)
            await response.write_eof()
        except OSError as problem:
            if request.transport is not None:
                request.transport.abort()  # the rest of the frame cannot be sent
            if isinstance(problem, TimeoutError):
                self.cut_off += 1
            elif not isinstance(problem, ConnectionError):
                raise  # not caused by the client
        return response

    async def _send_parts(
        self, request: web.Request, response: web.StreamResponse, parts: Sequence[Part]
    ) -> None:
        outgoing = Outgoing(parts)
        if len(outgoing) > limits.BULK_SLICE_BYTES:
            await response.write(b"")  # the header
            sock = await duplicate_socket(request)
            if sock is not None:
                await send_in_thread(sock, outgoing, self.context.background.send)
                return
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), limits.BULK_SLICE_BYTES):
                await self.context.admission.turn()
                async with asyncio.timeout(limits.BULK_STALL / SECOND):
                    await response.write(view[at : at + limits.BULK_SLICE_BYTES])
