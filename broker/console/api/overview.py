"""The overview of the broker: rates, totals, health, and current problems."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker import __version__
from broker.base.settings import Address
from broker.base.units import SECOND
from broker.bulk.service import BulkService
from broker.console import limits
from broker.console.api.jetstream.attention import StreamAttention
from broker.console.api.jetstream.streams import enabled_accounts, totals
from broker.console.api.nats import nats_of
from broker.console.listing import is_broken
from broker.console.recent import level_name
from broker.engine.cursor.cursor import cursors_of
from broker.engine.cursor.deadletter import dead_letters_of
from broker.net.listener import open_files
from broker.protocols.nsq.http.v1 import moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.console.context import Call, ConsoleContext, Handlers
    from broker.console.listing import Sweep
    from broker.engine.log.log import Log

    Json = dict[str, Any]

_TOTALS = ("channels", "depth", "in_flight", "deferred", "paused", "bytes")


class OverviewHandlers:
    """The handlers of /v1/overview, /v1/configuration and /v1/logs."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context
        self.host = context.host
        self._start_ns = time.time_ns() - (time.monotonic_ns() - _process_start_ns())
        self._cpu = (time.monotonic_ns(), time.process_time_ns(), 0.0)
        self._streams = StreamAttention(context)
        self._slow: deque[tuple[int, int]] = deque()  # time, and the count after it

    def handlers(self) -> Handlers:
        """By operation."""
        return {
            "overview": self.overview,
            "configuration": self.configuration,
            "logs": self.logs,
        }

    async def overview(self, _call: Call) -> Json:
        """The values of the first page."""
        sweep = await self.context.listing.recent_sweep()
        problems = self.host.engine.shared.health.problems()
        now_ns = time.time_ns()
        return {
            "server": {
                "name": self.context.server_name,
                "version": __version__,
                "started": moment(self._start_ns),
                "uptime_s": round((now_ns - self._start_ns) / SECOND),
                "ports": {name: str(Address(*at[:2])) for name, at in self.host.ports.items()},
            },
            "health": {
                "ok": not problems and not self._is_broken(sweep),
                "problems": [
                    {"kind": one.kind, "name": one.name, "reason": one.reason} for one in problems
                ],
            },
            "attention": await self._attention(sweep),
            "rates": self.context.history.rates(),
            "listeners": [
                {key: getattr(row, key) for key in type(row).__slots__} for row in self.host.stats()
            ],
            "topics": {
                "count": len(self.context.listing.names),
                **{key: None if sweep is None else sweep.totals[key] for key in _TOTALS},
                "quarantined": len(self.host.engine.quarantined),
            },
            "jetstream": await self._jetstream(),
            "disk": self._disk(),
            "process": self._process(),
            "readers": self._readers(),
            "history": self.context.history.page(),
        }

    def _is_broken(self, sweep: Sweep | None) -> bool:
        """Whether a log makes the broker unhealthy. `host.health()` answers the same, but checks
        all logs in one turn of the loop."""
        log = None if sweep is None else self.host.engine.logs.get(sweep.broken)
        return log is not None and is_broken(log)

    async def _jetstream(self) -> Json | None:
        accounts = enabled_accounts(self.context)
        return await totals(accounts) if accounts else None

    def _disk(self) -> Json | None:
        if self.host.data is None:
            return None
        usage = shutil.disk_usage(self.host.data)
        path = str(Path(self.host.data).resolve())
        return {"path": path, "total_bytes": usage.total, "free_bytes": usage.free}

    def _process(self) -> Json:
        now_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        at_ns, before_ns, percent = self._cpu
        if now_ns - at_ns >= limits.SAMPLE_AGE:
            percent = round(100 * (cpu_ns - before_ns) / (now_ns - at_ns), 1)
            self._cpu = (now_ns, cpu_ns, percent)
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            memory = pages * resource.getpagesize()
            files = open_files()
        except OSError:
            memory, files = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 0
        return {"memory_bytes": memory, "cpu_percent": percent, "open_files": files}

    def _readers(self) -> Json:
        service = self.host.service(BulkService)
        readers = None if service is None else service.readers
        if readers is None:
            return {"count": 0, "lag": None}
        lags = [records for _, _, records in readers.lags()]
        return {"count": len(readers.known), "lag": max(lags, default=None)}

    # --- attention

    async def _attention(self, sweep: Sweep | None) -> list[Json]:
        found: list[Json] = []
        for problem in self.host.engine.shared.health.problems():
            is_topic = problem.name in self.host.engine.logs
            found.append(_item("error", str(problem), problem.name if is_topic else None))
        if slow := self._slow_consumers():
            text = "that did not read fast enough (slow consumers)"
            clients = "client" if slow == 1 else "clients"
            found.append(_item("warning", f"{slow:,} NATS {clients} in ten minutes {text}"))
        found += await self._streams.items()
        disk = self._disk()
        if disk is not None and disk["free_bytes"] * 100 < (
            disk["total_bytes"] * limits.DISK_FREE_PERCENT
        ):
            percent = 100 * disk["free_bytes"] // disk["total_bytes"]
            found.append(_item("warning", f"{percent} % of the disk is free ({disk['path']})"))
        for name in () if sweep is None else sweep.suspects:
            log = self.host.engine.logs.get(name)
            if log is not None:
                found += _of_topic(log)
        found.sort(key=lambda item: item["severity"])
        return found[: limits.ATTENTION_MAX]

    def _slow_consumers(self) -> int:
        """The number of slow consumers in the last ATTENTION_SLOW, or since the console was first
        used."""
        server = nats_of(self.context)
        if server is None:
            return 0
        now_ns, count = time.monotonic_ns(), server.frontend.slow_consumers
        if not self._slow or count != self._slow[-1][1]:
            self._slow.append((now_ns, count))
        # The first entry is the count at the beginning of ATTENTION_SLOW.
        while len(self._slow) > 1 and now_ns - self._slow[1][0] > limits.ATTENTION_SLOW:
            self._slow.popleft()
        return count - self._slow[0][1]

    # --- configuration and log lines

    async def configuration(self, _call: Call) -> Json:
        """The settings in force."""
        return {
            "settings": [
                {
                    "section": section,
                    "key": key,
                    "value": value,
                    "origin": origin,
                    "changed": origin != "default",
                }
                for section, key, value, origin in self.host.settings_in_force()
            ]
        }

    async def logs(self, call: Call) -> Json:
        """Recent lines of the log."""
        query = call.query
        page = self.context.recent.page(
            query["level"], query["contains"], query["after"], query["limit"]
        )
        return {
            "records": [
                {
                    "number": number,
                    "time": moment(time_ns),
                    "level": level_name(level),
                    "logger": name,
                    "message": text,
                }
                for number, time_ns, level, name, text in page["lines"]
            ],
            "next": page["next"],
        }


def _process_start_ns() -> int:
    """When this process started, on the monotonic clock."""
    try:
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
        )
        return ticks * SECOND // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic_ns()


def _item(severity: str, text: str, topic: str | None = None, channel: str | None = None) -> Json:
    channel_name = {"topic": topic, "channel": channel, "account": None, "stream": None}
    return {"severity": severity, "text": text, **channel_name}


def _of_topic(log: Log) -> Iterator[Json]:
    if log.last_error:
        yield _item("error", f"topic {log.name} refuses messages: {log.refusal}", log.name)
    if log.unclaimed:
        text = f"topic {log.name} has lost its metadata: until it is claimed, nothing is dropped"
        yield _item("warning", text, log.name)
    if log.paused:
        yield _item("warning", f"topic {log.name} is paused", log.name)
    for cursor in cursors_of(log).values():
        channel_name = f"channel {cursor.name} of {log.name}"
        dead_letters = dead_letters_of(cursor)
        if dead_letters is not None and dead_letters.failing:
            text = f"{channel_name} cannot write its dead letters to {dead_letters.target}"
            yield _item("error", text, log.name, cursor.name)
        if cursor.paused:
            yield _item("warning", f"{channel_name} is paused", log.name, cursor.name)
        elif not cursor.consumers and cursor.depth >= limits.ATTENTION_DEPTH:
            text = f"{channel_name}: {cursor.depth:,} messages wait and no consumer is connected"
            yield _item("warning", text, log.name, cursor.name)
