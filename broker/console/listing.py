"""The list of topics: sorted by name at all times, by other values on request.

With 100,000 topics neither a sort nor a count fits into one turn of the loop. The names are kept in
order as topics are made and deleted. Other values are counted in steps ("a sweep"), at most so
often that it takes a hundredth of a core, and only while somebody looks. The rows of a page have
the values of the moment; only the order is as old as the last sweep.
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
    odd: bool  # a channel is paused, or cannot write its dead letters


def counts_of(log: Log) -> Counts:
    """The numbers at this moment."""
    depth = in_flight = deferred = consumers = passed = channels = 0
    odd = False
    for cursor in cursors_of(log).values():
        odd = odd or cursor.paused or _is_failing(cursor)
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
        odd,
    )


def _is_failing(cursor: Cursor) -> bool:
    if cursor.dead is None:
        return False
    dead = dead_letters_of(cursor)
    return dead is not None and dead.failing


COLUMNS = Counts._fields[:-1]
RATES = {"in_rate": "messages", "out_rate": "delivered"}  # and their counters
_SUMMED = ("depth", "in_flight", "deferred", "channels", "bytes")


class Rates:
    """Values per second of counters, from one look to a later one."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        # key -> time and counters of the last sample, and the rates before it
        self._samples: OrderedDict[
            object, tuple[int, tuple[int, ...], tuple[float | None, ...]]
        ] = OrderedDict()

    def of(self, key: object, counters: tuple[int, ...]) -> tuple[float | None, ...]:
        """The rates of these counters; None: this is the first look."""
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
    """The rates of counters; one that has been set back has none."""
    return tuple(
        round(max(0, b - a) * SECOND / elapsed_ns, 1) for a, b in zip(before, after, strict=True)
    )


class Sweep:
    """The values of all topics at one time, in columns: 100,000 tuples would have to be looked at
    by the garbage collector, and freed at once."""

    def __init__(self, at_ns: int) -> None:
        self.at_ns = at_ns
        self.took_ns = 0
        self.names: list[str] = []  # in order
        self.columns = {name: array("q") for name in COLUMNS}
        self.rates = {name: array("d") for name in RATES}
        self.totals = dict.fromkeys((*_SUMMED, "paused"), 0)
        self.noticed: list[str] = []  # topics that need attention, perhaps
        self.broken = ""  # one that cannot be written, or has lost its metadata; empty: none

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
            log.last_error or log.unclaimed or log.paused or counts.odd
            or counts.depth >= limits.ATTENTION_DEPTH
        ) and len(self.noticed) < limits.NOTICED_MAX:  # fmt: skip
            self.noticed.append(log.name)

    async def compare(self, before: Sweep | None) -> None:
        """Set the rates since an earlier sweep; 0 for new topics."""
        pauses, at = Pauses(), 0
        elapsed_ns = 0 if before is None else self.at_ns - before.at_ns
        for number, name in enumerate(self.names):
            if pauses.is_due():
                await pauses.rest()
            if before is not None:
                while at < len(before.names) and before.names[at] < name:
                    at += 1
                    if pauses.is_due():
                        await pauses.rest()
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
    """Which rows of a list are wanted."""

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
        self._missed: list[tuple[str, bool]] | None = []  # changes while the names are sorted
        self.sweep: Sweep | None = None
        self._sweeping: asyncio.Task[Sweep] | None = None
        self._dropping: asyncio.TimerHandle | None = None
        engine.watch(self._changed)

    def close(self) -> None:
        """Watch no longer."""
        self.engine.unwatch(self._changed)
        if self._dropping is not None:
            self._dropping.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _changed(self, name: str, cursor: str | None, made: bool) -> None:
        if cursor is not None:
            return
        if self._missed is not None:
            self._missed.append((name, made))
            return
        at = bisect_left(self.names, name)
        known = at < len(self.names) and self.names[at] == name
        if made and not known and name in self.engine.logs:  # else a stream stands for it
            insort(self.names, name)
        elif not made and known:
            del self.names[at]

    async def ready(self) -> None:
        """Wait until the names are in order: the first time they are sorted, in steps."""
        if self._missed is None:
            return
        if self._sorting is None:
            self._sorting = asyncio.get_running_loop().create_task(self._sort())
        await asyncio.shield(self._sorting)

    async def _sort(self) -> None:
        self._missed = []
        names, pauses, chunks = list(self.engine.logs), Pauses(), []
        for at in range(0, len(names), limits.SORT_CHUNK):
            chunks.append(sorted(names[at : at + limits.SORT_CHUNK]))
            await pauses.rest()
        for name in heapq.merge(*chunks):
            self.names.append(name)
            if pauses.is_due():
                await pauses.rest()
        missed, self._missed = self._missed, None
        for name, made in missed:
            self._changed(name, None, made)

    # --- sweeps

    async def lately(self) -> Sweep | None:
        """The values of all topics; None if they are so many that the first count takes a while,
        and it is under way."""
        await self.ready()
        if self.sweep is None and len(self.names) > limits.SWEEP_TOPICS_QUICK:
            self._begin()
            return None
        return await self.swept()

    async def swept(self) -> Sweep:
        """The values of all topics: counted now if that is quick, else lately."""
        await self.ready()
        last, task = self.sweep, self._begin()
        if task is not None and (last is None or last.took_ns < limits.SWEEP_QUICK):
            return await asyncio.shield(task)
        assert last is not None
        return last

    def count_few(self) -> None:
        """Begin to count if that is so quick that it may be done while nobody looks."""
        if self._missed is not None or len(self.names) > limits.HISTORY_TOPICS_MAX:
            return
        if self.sweep is None or self.now_ns() - self.sweep.at_ns >= limits.HISTORY_COUNT_AGE:
            self._begin()

    def _begin(self) -> asyncio.Task[Sweep] | None:
        """Count again if the values are old; the task if they are being counted."""
        self._keep()
        last, wait_ns = self.sweep, 0
        if last is not None:
            wait_ns = max(limits.SWEEP_AGE, limits.SWEEP_SHARE * last.took_ns)
        if self._sweeping is None and (last is None or self.now_ns() - last.at_ns >= wait_ns):
            self._sweeping = asyncio.get_running_loop().create_task(self._run())
        return self._sweeping

    def _keep(self) -> None:
        """Drop the values a while after the last request."""
        loop = asyncio.get_running_loop()
        if self._dropping is not None:
            self._dropping.cancel()
        self._dropping = loop.call_later(limits.SWEEP_KEPT / SECOND, self._drop)

    def _drop(self) -> None:
        self._dropping = self.sweep = None

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
                found.took_ns += time.monotonic_ns() - since_ns
                await pauses.rest()
                since_ns = time.monotonic_ns()
        found.took_ns += time.monotonic_ns() - since_ns
        await found.compare(self.sweep)
        return found

    # --- pages

    async def page(self, asked: Selection) -> dict[str, Any]:
        """The topics that are selected, as the API answers them."""
        await self.ready()
        sweep, age_s = None, 0.0
        column = asked.sort.removeprefix("-")
        if asked.non_empty or column != "name":
            sweep = await self.swept()
            age_s = round((self.now_ns() - sweep.at_ns) / SECOND, 1)
        elif self.sweep is None:
            self._begin()  # so that the first choice of another order is answered at once
        else:
            self._keep()
        if asked.filter or asked.non_empty or asked.kind or column != "name":
            matched, names = await self._select(asked, sweep)
        else:
            matched, names = len(self.names), self._by_name(asked)
        pauses, rows = Pauses(), []
        for name in names:
            log = self.engine.logs.get(name)
            if log is not None:
                rows.append(self.row(log))
            if pauses.is_due():
                await pauses.rest()
        return {
            "total": len(self.names),
            "matched": matched,
            "offset": asked.offset,
            "limit": asked.limit,
            "sort": asked.sort,
            "age_s": age_s,
            "topics": rows,
        }

    def _by_name(self, asked: Selection) -> list[str]:
        if not asked.sort.startswith("-"):
            return self.names[asked.offset : asked.offset + asked.limit]
        end = max(0, len(self.names) - asked.offset)
        return self.names[max(0, end - asked.limit) : end][::-1]

    async def _select(self, asked: Selection, sweep: Sweep | None) -> tuple[int, list[str]]:
        """How many names match, and those of the page."""
        names, pauses = list(self.names) if sweep is None else sweep.names, Pauses()
        matched: Sequence[int] = range(len(names))
        if asked.filter or asked.non_empty or asked.kind:
            found = array("q")
            for at in range(0, len(names), limits.SELECT_CHUNK):
                part = range(at, min(at + limits.SELECT_CHUNK, len(names)))
                found.extend(self._wanted(part, names, asked, sweep))
                if pauses.is_over():
                    await pauses.rest()
            matched = found
        column, falls = asked.sort.removeprefix("-"), asked.sort.startswith("-")
        end = asked.offset + asked.limit
        if column == "name":
            rows = matched[::-1] if falls else matched
            return len(matched), [names[number] for number in rows[asked.offset : end]]
        assert sweep is not None
        value = sweep.column(column).__getitem__
        shown = await ordered(matched, value, asked.offset, end, falls=falls)
        return len(matched), [names[number] for number in shown]

    def _wanted(
        self, rows: Sequence[int], names: list[str], asked: Selection, sweep: Sweep | None
    ) -> Sequence[int]:
        """Those of some rows that match; one comprehension for each condition, because there may
        be very many."""
        if asked.filter:
            text = asked.filter.lower()
            rows = [number for number in rows if text in names[number].lower()]
        if asked.non_empty:
            assert sweep is not None
            depth, flying, late = (sweep.columns[k] for k in ("depth", "in_flight", "deferred"))
            rows = [number for number in rows if depth[number] or flying[number] or late[number]]
        if asked.kind is not None:
            rows = [number for number in rows if self._is_of(names[number], asked.kind)]
        return rows

    def _is_of(self, name: str, kind: str) -> bool:
        log = self.engine.logs.get(name)
        return log is not None and kind_of(log) == kind

    def row(self, log: Log) -> Row:
        """A topic with its values of now."""
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
        """A channel with its values of now."""
        depth, in_flight = cursor.depth, cursor.in_flight_count
        deferred, messages = cursor.deferred_count, cursor.message_count
        done = messages - depth - in_flight - deferred
        log, dead = cursor.log, dead_letters_of(cursor)
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
            "dead_letters": 0 if dead is None else dead.count,
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
    """Why the log is unhealthy; None: all is well."""
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
    falls: bool = False,
) -> list[int]:
    """The rows from `start` to `end` in order of their values, sorted in steps."""
    chunks, pauses = [], Pauses()
    for at in range(0, len(rows), limits.SORT_CHUNK):
        chunk = sorted(rows[at : at + limits.SORT_CHUNK], key=value, reverse=falls)
        chunks.append(chunk[:end])
        if pauses.is_over():
            await pauses.rest()
    found: list[int] = []
    for number, row in enumerate(heapq.merge(*chunks, key=value, reverse=falls)):
        if number >= end:
            break
        if number >= start:
            found.append(row)
        if pauses.is_due():
            await pauses.rest()
    return found
