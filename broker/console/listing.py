"""The list of topics: sorted by name at all times, by other values on request.

With 100,000 topics neither a sort nor a count fits into one turn of the loop. The names are kept in
order when topics are created and deleted. Other values are counted in steps ("a sweep"), at most so
often that it takes a hundredth of a core, and only while clients request them. The rows of a page
have current values; only the order is that of the last sweep.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.base.units import SECOND
from broker.console import limits
from broker.console.pauses import Pauses
from broker.engine.cursor.cursor import cursors_of
from broker.engine.cursor.deadletter import dead_letters_of
from broker.protocols.access import STAN
from broker.protocols.nsq.topics import is_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.engine.cursor.cursor import Cursor
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log

    Row = dict[str, Any]


class Counts(NamedTuple):
    """The numbers of one topic; the names of its columns in the API."""

    depth: int
    backlog: int
    in_flight: int
    deferred: int
    messages: int
    bytes: int
    channels: int
    consumers: int
    delivered: int  # finished or dropped, of all channels together
    needs_attention: bool  # a channel is paused, or cannot write its dead letters


def counts_of(log: Log) -> Counts:
    """The current numbers."""
    depth = in_flight = deferred = consumers = passed = channels = 0
    needs_attention = False
    for cursor in cursors_of(log).values():
        needs_attention = needs_attention or cursor.paused or _is_failing(cursor)
        channels += 1
        depth += cursor.depth
        in_flight += cursor.in_flight_count
        deferred += cursor.deferred_count
        consumers += cursor.consumers
        passed += cursor.message_count
    waiting = depth + in_flight + deferred
    backlog = log.depth
    size = log.memory_bytes() if log.folder is None else log.disk_bytes
    return Counts(
        depth + backlog,
        backlog,
        in_flight,
        deferred,
        log.message_count,
        size,
        channels,
        consumers,
        passed - waiting,
        needs_attention,
    )


def _is_failing(cursor: Cursor) -> bool:
    if cursor.dead is None:
        return False
    dead_letters = dead_letters_of(cursor)
    return dead_letters is not None and dead_letters.failing


COLUMNS = Counts._fields[:-1]
RATES = {"in_rate": "messages", "out_rate": "delivered"}  # and their counters
_SUMMED = ("depth", "in_flight", "deferred", "channels", "bytes")


class Rates:
    """Values per second of counters, between two calls of `of`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        # key -> time and counters of the last sample, and the rates before it
        self._samples: OrderedDict[
            object, tuple[int, tuple[int, ...], tuple[float | None, ...]]
        ] = OrderedDict()

    def of(self, key: object, counters: tuple[int, ...]) -> tuple[float | None, ...]:
        """The rates of these counters since an earlier call; None in the first call."""
        now_ns = self._now_ns()
        sample = self._samples.get(key)
        if sample is not None:
            at_ns, before, rates = sample
            self._samples.move_to_end(key)
            if now_ns - at_ns < limits.SAMPLE_AGE:
                return rates
            found = per_second(before, counters, now_ns - at_ns)
        else:
            found = (None,) * len(counters)
        self._samples[key] = (now_ns, counters, found)
        while len(self._samples) > limits.SAMPLES_MAX:
            self._samples.popitem(last=False)
        return found


def per_second(
    before: Sequence[int], after: Sequence[int], elapsed_ns: int
) -> tuple[float | None, ...]:
    """The rates of counters; 0 for one that was reset."""
    return tuple(
        round(max(0, b - a) * SECOND / elapsed_ns, 1) for a, b in zip(before, after, strict=True)
    )


class Sweep:
    """The values of all topics at one time, in columns, because the garbage collector would have to
    traverse 100,000 tuples."""

    def __init__(self, at_ns: int) -> None:
        self.at_ns = at_ns
        self.duration_ns = 0
        self.names: list[str] = []  # in order
        self.columns = {name: array("q") for name in COLUMNS}
        self.rates = {name: array("d") for name in RATES}
        self.totals = dict.fromkeys((*_SUMMED, "paused"), 0)
        self.suspects: list[str] = []  # topics that may need attention
        # A topic that cannot be written or has lost its metadata; empty: none.
        self.broken = ""

    def add(self, log: Log) -> None:
        """Count one topic."""
        counts = counts_of(log)
        self.names.append(log.name)
        for column, value in zip(self.columns.values(), counts, strict=False):
            column.append(value)
        for name in _SUMMED:
            self.totals[name] += getattr(counts, name)
        self.totals["paused"] += log.paused
        if not self.broken and is_broken(log):
            self.broken = log.name
        if (
            log.last_error or log.unclaimed or log.paused or counts.needs_attention
            or counts.depth >= limits.ATTENTION_DEPTH
        ) and len(self.suspects) < limits.NOTICED_MAX:  # fmt: skip
            self.suspects.append(log.name)

    async def compare(self, before: Sweep | None) -> None:
        """Set the rates since an earlier sweep; 0 for new topics."""
        pauses, at = Pauses(), 0
        elapsed_ns = 0 if before is None else self.at_ns - before.at_ns
        for number, name in enumerate(self.names):
            if pauses.is_due():
                await pauses.pause()
            if before is not None:
                while at < len(before.names) and before.names[at] < name:
                    at += 1
                    if pauses.is_due():
                        await pauses.pause()
            is_known = (
                before is not None
                and elapsed_ns > 0
                and (at < len(before.names) and before.names[at] == name)
            )
            for rate, counter in RATES.items():
                found = 0.0
                if is_known:
                    assert before is not None
                    column = self.columns[counter]
                    gained = column[number] - before.columns[counter][at]
                    found = max(0, gained) * SECOND / elapsed_ns
                self.rates[rate].append(found)

    def column(self, name: str) -> array[int] | array[float]:
        """The values of a column, in the order of the names."""
        return self.rates[name] if name in self.rates else self.columns[name]


class Selection(NamedTuple):
    """The filter, order and part of a list that a request selects."""

    filter: str | None
    sort: str
    offset: int
    limit: int
    non_empty: bool = False
    kind: str | None = None


class Listing:
    """The topics of one engine."""

    def __init__(self, engine: Engine, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.engine = engine
        self.now_ns = now_ns
        self.rates = Rates(now_ns)
        self.names: list[str] = []  # in order, after `ready`
        self._sorting: asyncio.Task[None] | None = None
        self._changes: list[tuple[str, bool]] | None = []  # changes while the names are sorted
        self.sweep: Sweep | None = None
        self._sweeping: asyncio.Task[Sweep] | None = None
        self._drop_timer: asyncio.TimerHandle | None = None
        engine.watch(self._changed)

    def close(self) -> None:
        """Stop watching the engine."""
        self.engine.unwatch(self._changed)
        if self._drop_timer is not None:
            self._drop_timer.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _changed(self, name: str, cursor: str | None, created: bool) -> None:
        if cursor is not None:
            return
        if self._changes is not None:
            self._changes.append((name, created))
            return
        at = bisect_left(self.names, name)
        known = at < len(self.names) and self.names[at] == name
        if created and not known and name in self.engine.logs:  # not for streams
            insort(self.names, name)
        elif not created and known:
            del self.names[at]

    async def ready(self) -> None:
        """Wait until the names are in order; the first call sorts them, in steps."""
        if self._changes is None:
            return
        if self._sorting is None:
            self._sorting = asyncio.get_running_loop().create_task(self._sort())
        await asyncio.shield(self._sorting)

    async def _sort(self) -> None:
        self._changes = []
        names, pauses, chunks = list(self.engine.logs), Pauses(), []
        for at in range(0, len(names), limits.SORT_CHUNK):
            chunks.append(sorted(names[at : at + limits.SORT_CHUNK]))
            await pauses.pause()
        for name in heapq.merge(*chunks):
            self.names.append(name)
            if pauses.is_due():
                await pauses.pause()
        changes, self._changes = self._changes, None
        for name, created in changes:
            self._changed(name, None, created)

    # --- sweeps

    async def recent_sweep(self) -> Sweep | None:
        """The values of all topics. None while many topics are counted for the first time."""
        await self.ready()
        if self.sweep is None and len(self.names) > limits.SWEEP_TOPICS_QUICK:
            self._begin()
            return None
        return await self.current_sweep()

    async def current_sweep(self) -> Sweep:
        """The values of all topics: counted now if the last count was quick, else the last ones."""
        await self.ready()
        last, task = self.sweep, self._begin()
        if task is not None and (last is None or last.duration_ns < limits.SWEEP_QUICK):
            return await asyncio.shield(task)
        assert last is not None
        return last

    def count_if_quick(self) -> None:
        """Start to count, even without a request, if there are so few topics that it is cheap."""
        if self._changes is not None or len(self.names) > limits.HISTORY_TOPICS_MAX:
            return
        if self.sweep is None or self.now_ns() - self.sweep.at_ns >= limits.HISTORY_COUNT_AGE:
            self._begin()

    def _begin(self) -> asyncio.Task[Sweep] | None:
        """Start to count if the values are old. Returns the task that counts, if any."""
        self._reset_drop_timer()
        last, wait_ns = self.sweep, 0
        if last is not None:
            wait_ns = max(limits.SWEEP_AGE, limits.SWEEP_SHARE * last.duration_ns)
        if self._sweeping is None and (last is None or self.now_ns() - last.at_ns >= wait_ns):
            self._sweeping = asyncio.get_running_loop().create_task(self._run())
        return self._sweeping

    def _reset_drop_timer(self) -> None:
        """Drop the values SWEEP_KEPT after the last request."""
        loop = asyncio.get_running_loop()
        if self._drop_timer is not None:
            self._drop_timer.cancel()
        self._drop_timer = loop.call_later(limits.SWEEP_KEPT / SECOND, self._drop)

    def _drop(self) -> None:
        self._drop_timer = self.sweep = None

    async def _run(self) -> Sweep:
        try:
            self.sweep = await self._count()
            return self.sweep
        finally:
            self._sweeping = None

    async def _count(self) -> Sweep:
        found, pauses, since_ns = Sweep(self.now_ns()), Pauses(), time.monotonic_ns()
        for name in list(self.names):
            log = self.engine.logs.get(name)
            if log is not None:
                found.add(log)
            if pauses.is_due():
                found.duration_ns += time.monotonic_ns() - since_ns
                await pauses.pause()
                since_ns = time.monotonic_ns()
        found.duration_ns += time.monotonic_ns() - since_ns
        await found.compare(self.sweep)
        return found

    # --- pages

    async def page(self, selection: Selection) -> dict[str, Any]:
        """A page of the selected topics, in the form of the API."""
        await self.ready()
        sweep, age_s = None, 0.0
        column = selection.sort.removeprefix("-")
        if selection.non_empty or column != "name":
            sweep = await self.current_sweep()
            age_s = round((self.now_ns() - sweep.at_ns) / SECOND, 1)
        elif self.sweep is None:
            self._begin()  # so that another sort order can be answered at once
        else:
            self._reset_drop_timer()
        if selection.filter or selection.non_empty or selection.kind or column != "name":
            matched, names = await self._select(selection, sweep)
        else:
            matched, names = len(self.names), self._by_name(selection)
        pauses, rows = Pauses(), []
        for name in names:
            log = self.engine.logs.get(name)
            if log is not None:
                rows.append(self.row(log))
            if pauses.is_due():
                await pauses.pause()
        return {
            "total": len(self.names),
            "matched": matched,
            "offset": selection.offset,
            "limit": selection.limit,
            "sort": selection.sort,
            "age_s": age_s,
            "topics": rows,
        }

    def _by_name(self, selection: Selection) -> list[str]:
        if not selection.sort.startswith("-"):
            return self.names[selection.offset : selection.offset + selection.limit]
        end = max(0, len(self.names) - selection.offset)
        return self.names[max(0, end - selection.limit) : end][::-1]

    async def _select(self, selection: Selection, sweep: Sweep | None) -> tuple[int, list[str]]:
        """The number of names that match, and the names of the page."""
        names, pauses = list(self.names) if sweep is None else sweep.names, Pauses()
        matched: Sequence[int] = range(len(names))
        if selection.filter or selection.non_empty or selection.kind:
            found = array("q")
            for at in range(0, len(names), limits.SELECT_CHUNK):
                part = range(at, min(at + limits.SELECT_CHUNK, len(names)))
                found.extend(self._matching(part, names, selection, sweep))
                if pauses.is_step_over():
                    await pauses.pause()
            matched = found
        column, descending = selection.sort.removeprefix("-"), selection.sort.startswith("-")
        end = selection.offset + selection.limit
        if column == "name":
            rows = matched[::-1] if descending else matched
            return len(matched), [names[number] for number in rows[selection.offset : end]]
        assert sweep is not None
        value = sweep.column(column).__getitem__
        shown = await ordered(matched, value, selection.offset, end, descending=descending)
        return len(matched), [names[number] for number in shown]

    def _matching(
        self, rows: Sequence[int], names: list[str], selection: Selection, sweep: Sweep | None
    ) -> Sequence[int]:
        """The rows that match; one comprehension for each condition, because there may be very many
        rows."""
        if selection.filter:
            text = selection.filter.lower()
            rows = [number for number in rows if text in names[number].lower()]
        if selection.non_empty:
            assert sweep is not None
            depth, in_flight, deferred = (
                sweep.columns[k] for k in ("depth", "in_flight", "deferred")
            )
            rows = [
                number for number in rows if depth[number] or in_flight[number] or deferred[number]
            ]
        if selection.kind is not None:
            rows = [number for number in rows if self._is_of(names[number], selection.kind)]
        return rows

    def _is_of(self, name: str, kind: str) -> bool:
        log = self.engine.logs.get(name)
        return log is not None and kind_of(log) == kind

    def row(self, log: Log) -> Row:
        """A topic with its current values."""
        counts = counts_of(log)
        received, delivered = self.rates.of(
            ("", log.name, log.log_id), (counts.messages, counts.delivered)
        )
        return {
            "name": log.name,
            "kind": kind_of(log),
            "depth": counts.depth,
            "backlog": counts.backlog,
            "in_flight": counts.in_flight,
            "deferred": counts.deferred,
            "messages": counts.messages,
            "bytes": counts.bytes,
            "in_rate": received,
            "out_rate": delivered,
            "channels": counts.channels,
            "consumers": counts.consumers,
            "paused": log.paused,
            "ephemeral": log.ephemeral,
            "problem": problem_of(log),
        }

    def channel_row(self, cursor: Cursor) -> Row:
        """A channel with its current values."""
        depth, in_flight = cursor.depth, cursor.in_flight_count
        deferred, messages = cursor.deferred_count, cursor.message_count
        done = messages - depth - in_flight - deferred
        log, dead_letters = cursor.log, dead_letters_of(cursor)
        (rate,) = self.rates.of((cursor.name, log.name, log.log_id), (done,))
        return {
            "name": cursor.name,
            "kind": "nsq" if is_channel(cursor) and log.protocol is None else STAN,
            "depth": depth,
            "in_flight": in_flight,
            "deferred": deferred,
            "consumers": cursor.consumers,
            "messages": messages,
            "requeued": cursor.requeue_count,
            "timed_out": cursor.timeout_count,
            "dead_letters": 0 if dead_letters is None else dead_letters.count,
            "out_rate": rate,
            "paused": cursor.paused,
            "ephemeral": cursor.ephemeral,
        }


def kind_of(log: Log) -> str:
    """The protocol that owns the topic."""
    return STAN if log.protocol == STAN else "nsq"


def is_broken(log: Log) -> bool:
    """Whether the log makes the broker unhealthy."""
    return bool(log.last_error or log.unclaimed)


def problem_of(log: Log) -> str | None:
    """Why the log is unhealthy; None if it is healthy."""
    if log.last_error:
        return log.refusal
    found = (p for p in log.shared.health.problems() if p.name == log.name)
    problem = next(found, None)
    return None if problem is None else str(problem)


async def ordered(
    rows: Sequence[int],
    value: Callable[[int], float],
    start: int,
    end: int,
    *,
    descending: bool = False,
) -> list[int]:
    """The rows from `start` to `end` in order of their values, sorted in steps."""
    chunks, pauses = [], Pauses()
    for at in range(0, len(rows), limits.SORT_CHUNK):
        chunk = sorted(rows[at : at + limits.SORT_CHUNK], key=value, reverse=descending)
        chunks.append(chunk[:end])
        if pauses.is_step_over():
            await pauses.pause()
    found: list[int] = []
    for number, row in enumerate(heapq.merge(*chunks, key=value, reverse=descending)):
        if number >= end:
            break
        if number >= start:
            found.append(row)
        if pauses.is_due():
            await pauses.pause()
    return found
