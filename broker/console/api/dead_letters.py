"""Dead letters: their topics, groups by reason and origin, and requeueing in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from broker.base.units import COUNT_MAX, SECOND
from broker.base.values import dataclass
from broker.console import errors, limits
from broker.console.api.messages import shown
from broker.console.api.topics import need_nsq, policy_page
from broker.console.errors import RefusedError
from broker.console.pauses import Pauses
from broker.engine.cursor.cursor import open_cursor
from broker.engine.cursor.deadletter import dead_letters_of
from broker.engine.cursor.local import peek_cursor, peek_log
from broker.protocols.nsq.dead_letters import SUFFIX, Returned, return_dead_letters
from broker.protocols.nsq.http.v1 import STATES, fill, moment, rows_of
from broker.protocols.nsq.topics import channels_of

if TYPE_CHECKING:
    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.log.log import Log

    Json = dict[str, Any]

log = logging.getLogger("broker.console")
_CHANNEL = "requeue"  # as in the NSQ HTTP API
_REASON, _TOPIC, _FROM = "Twinwire-Reason", "Twinwire-Topic", "Twinwire-Channel"


@dataclass(slots=True)
class Job:
    """Messages that are being requeued."""

    topic: str
    total: int
    rate: float | None
    to_topic: bool
    start_ns: int
    seqs: list[int] | None = None  # those not tried yet; None: all that wait
    moved: int = 0
    kept: int = 0
    failed: str = ""
    running: bool = True
    task: asyncio.Task[None] | None = None

    def page(self) -> Json:
        """Its fields in responses."""
        return {
            "topic": self.topic,
            "running": self.running,
            "total": self.total,
            "moved": self.moved,
            "kept": self.kept,
            "failed": self.failed,
            "rate": self.rate,
            "started": moment(self.start_ns),
        }


class DeadLetterHandlers:
    """The handlers of /v1/dead-letters."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context
        self.jobs: OrderedDict[str, Job] = OrderedDict()

    def handlers(self) -> Handlers:
        """By operation."""
        return {
            "deadLetters": self.show,
            "deadLetterGroups": self.groups,
            "requeue": self.requeue,
            "stopRequeue": self.stop,
        }

    # --- lists

    async def show(self, _call: Call) -> Json:
        """Topics that are targets of dead letters or have such a name, and all policies."""
        await self.context.listing.ready()
        found: set[str] = set()
        policies: list[Json] = []
        complete, pauses = True, Pauses()
        for name in list(self.context.listing.names):
            entry = self.context.host.engine.logs.get(name)
            if entry is None:
                continue
            if name.endswith(SUFFIX):
                found.add(name)
            for cursor in channels_of(entry) if entry.cursors else ():
                if pauses.is_due():
                    await pauses.pause()
                dead = dead_letters_of(cursor)
                if dead is None:
                    continue
                found.add(dead.target)
                if len(policies) == limits.POLICIES_MAX:
                    complete = False
                elif page := policy_page(self.context, cursor):
                    policies.append(page)
            if pauses.is_due():
                await pauses.pause()
        topics = []
        for name in sorted(found):
            entry = self.context.host.engine.logs.get(name)
            if entry is not None:
                topics.append({"topic": name, "messages": _waiting(entry)})
        return {"topics": topics, "policies": policies, "complete": complete}

    async def groups(self, call: Call) -> Json:
        """The dead letters that wait in one topic, by reason and origin."""
        entry = self.context.log(call.topic)
        cursor, scan = _channel(entry), call.query["scan"]
        groups: dict[tuple[str, ...], Json] = {}
        scanned, next_seq = 0, 0 if cursor is not None else entry.frontier
        following: int | None = next_seq
        while following is not None and scanned < scan:
            step = min(limits.SCAN_STEP, scan - scanned)
            if cursor is not None:
                page = peek_cursor(cursor, STATES, following, step)
            else:
                page = peek_log(entry, max(following, entry.frontier), step)
            rows = await asyncio.to_thread(fill, rows_of(page), page, "text")
            for row in rows:
                _add(groups, row)
            scanned += len(page.found)
            following = page.next_seq
        job = self.jobs.get(entry.name)
        return {
            "topic": entry.name,
            "channel": None if cursor is None else cursor.name,
            "waiting": _waiting(entry),
            "scanned": scanned,
            "complete": following is None,
            "groups": sorted(groups.values(), key=lambda group: -group["count"]),
            "requeue": None if job is None else job.page(),
        }

    # --- requeueing

    async def requeue(self, call: Call) -> Json:
        """Start to requeue messages."""
        need_nsq(self.context)
        entry = self.context.topic(call.topic)
        before = self.jobs.get(entry.name)
        if before is not None and before.running:
            raise RefusedError(errors.BUSY, topic=entry.name)
        body = call.body
        seqs = None if body["seqs"] is None else sorted(set(body["seqs"]))
        waiting = _waiting(entry) if seqs is None else len(seqs)
        total = min(waiting, body["limit"] or COUNT_MAX)
        to_topic = body["to"] == "topic"
        cursor = _channel(entry)
        if cursor is None:
            cursor = open_cursor(entry, _CHANNEL)
        job = Job(entry.name, total, body["rate"], to_topic, time.time_ns(), seqs)
        self.jobs[entry.name] = job
        self.jobs.move_to_end(entry.name)
        while len(self.jobs) > limits.JOBS_MAX and not next(iter(self.jobs.values())).running:
            self.jobs.popitem(last=False)
        if cursor.paused:
            job.running, job.failed = False, f"channel {cursor.name} is paused"
            return job.page()
        job.task = asyncio.get_running_loop().create_task(self._work(job, cursor))
        return job.page()

    async def stop(self, call: Call) -> Json:
        """Stop requeueing; messages that were moved are not moved back."""
        job = self.jobs.get(call.topic)
        if job is None:
            raise RefusedError(errors.NO_JOB, topic=call.topic)
        if job.task is not None and job.running:
            job.task.cancel()
            await asyncio.wait((job.task,))
            job.failed = job.failed or "stopped"
        return job.page()

    async def _work(self, job: Job, cursor: Cursor) -> None:
        try:
            while job.moved + job.kept < job.total and not job.failed:
                start_ns = time.monotonic_ns()
                done = await self._requeue_step(job, cursor)
                job.moved += done.moved
                job.kept += done.kept
                job.failed = done.failed
                if not (done.moved or done.kept or job.seqs):
                    break  # no message waits, and no more were selected
                if job.rate is not None:
                    used_s = (time.monotonic_ns() - start_ns) / SECOND
                    await asyncio.sleep(max(0.0, done.moved / job.rate - used_s))
        except OSError as problem:
            job.failed = problem.strerror or str(problem)
        except Exception:
            log.exception("dead letters of %s cannot be sent back", job.topic)
            job.failed = errors.INTERNAL.text
        finally:
            job.running = False

    async def _requeue_step(self, job: Job, cursor: Cursor) -> Returned:
        step = limits.REQUEUE_STEP
        if job.rate is not None:
            step = max(1, min(step, int(job.rate)))
        # Messages that could not be requeued are the first ones again, so read beyond them.
        count = min(step + job.kept, job.total - job.moved)
        topics = need_nsq(self.context).api.topics
        if job.seqs is None:
            done = await return_dead_letters(topics, cursor, count, to_topic=job.to_topic)
            return done._replace(kept=max(0, done.kept - job.kept))
        selected, job.seqs = job.seqs[:count], job.seqs[count:]
        return await return_dead_letters(
            topics, cursor, COUNT_MAX, to_topic=job.to_topic, only=frozenset(selected)
        )


def _channel(entry: Log) -> Cursor | None:
    """The channel in which dead letters wait; None: none has received them."""
    found = {cursor.name: cursor for cursor in channels_of(entry)}
    return found.get(_CHANNEL) or next(iter(found.values()), None)


def _waiting(entry: Log) -> int:
    cursor = _channel(entry)
    if cursor is None:
        return entry.depth
    return cursor.depth + cursor.in_flight_count + cursor.deferred_count


def _header(row: Json, name: str) -> str | None:
    found = row.get("headers", {}).get(name)
    return found[0] if found else None


def _add(groups: dict[tuple[str, ...], Json], row: Json) -> None:
    """Count a message in its group."""
    reason = _header(row, _REASON) or ("unreadable" if row.get("unreadable") else "unknown")
    topic, channel = _header(row, _TOPIC), _header(row, _FROM)
    at = row.get("timestamp", moment(0))
    key = (reason, topic or "", channel or "")
    group = groups.get(key)
    if group is None:
        group = groups[key] = {
            "reason": reason,
            "origin_topic": topic,
            "origin_channel": channel,
            "count": 0,
            "first": at,
            "last": at,
            "sample": shown(row, "text"),
            "seqs": [],
        }
    group["count"] += 1
    group["last"] = at
    if len(group["seqs"]) < limits.GROUP_SEQS_MAX:
        group["seqs"].append(row["seq"])
