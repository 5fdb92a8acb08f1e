"""The monitoring door: pages that NATS tools and load balancers read, in nats-server's shapes.

Numbers stay numbers, times are RFC 3339 with nanoseconds, durations are nanoseconds, JSON is
indented except for /healthz. Whoever builds the server may add pages (`/metrics` is one).
"""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from aiohttp import web

from broker import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from broker.stats import Stats

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

NS = 1_000_000_000
_PROTO = 1  # of the client protocol
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_BOOLEANS = {"1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False"}
_HEALTH_SWITCHES = ("js-enabled", "js-enabled-only", "js-server-only")


class MonitorSource(Protocol):
    """What the pages ask the server for; all calls are made on the loop's thread."""

    def snapshot(self) -> Stats:
        """A copy of all counters."""

    def health(self) -> str | None:
        """None when all is well, else what is not."""

    def identity(self) -> Identity:
        """Who the server is and what it was told."""


@dataclass(frozen=True)
class Identity:
    """What /varz says that does not change while the server runs."""

    server_id: str
    server_name: str
    version: str  # the nats-server level whose behaviour we match
    host: str
    port: int
    http_host: str
    http_port: int
    max_connections: int
    max_subscriptions: int  # 0 = no limit
    max_control_line: int
    max_payload: int
    max_pending: int
    ping_interval_ns: int
    ping_max: int
    write_deadline_ns: int
    door: str = "nats"  # the door of a snapshot whose counters are shown
    start_ns: int = field(default_factory=time.time_ns)  # wall clock


def rfc3339(wall_ns: int) -> str:
    """A wall clock time, UTC, nanoseconds without trailing zeros."""
    seconds, fraction = divmod(wall_ns, NS)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    digits = f"{fraction:09d}".rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def uptime(seconds: int) -> str:
    """1y2d3h4m5s, from the largest unit that is not zero."""
    rest, parts = divmod(seconds, 60)[0], [f"{seconds % 60}s"]
    for size, unit in ((60, "m"), (24, "h"), (365, "d")):
        if not rest:
            break
        rest, count = divmod(rest, size)
        parts.append(f"{count}{unit}")
    if rest:
        parts.append(f"{rest}y")
    return "".join(reversed(parts))


def resident_bytes() -> int:
    """Memory of this process that is in RAM now; what it was at most where /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * _PAGE_BYTES


class _CpuMeter:
    """Percent of one core since the last look, which must be a moment ago to mean anything."""

    SPAN_MIN_S = 1.0

    def __init__(self) -> None:
        self._wall, self._cpu, self._percent = time.monotonic(), time.process_time(), 0.0

    def percent(self) -> float:
        wall, cpu = time.monotonic(), time.process_time()
        if wall - self._wall >= self.SPAN_MIN_S:
            self._percent = round(100 * (cpu - self._cpu) / (wall - self._wall), 1)
            self._wall, self._cpu = wall, cpu
        return self._percent


class Monitor:
    """The pages of one server."""

    def __init__(self, source: MonitorSource) -> None:
        self.source = source
        self.requests: Counter[str] = Counter()
        self._cpu = _CpuMeter()

    def varz(self) -> dict[str, Any]:
        """The general page: who, what was set, and the NATS door's counters."""
        who, stats, now_ns = self.source.identity(), self.source.snapshot(), time.time_ns()
        door = next((d for d in stats.doors if d.name == who.door), None)
        start = rfc3339(who.start_ns)
        page: dict[str, Any] = {
            "server_id": who.server_id,
            "server_name": who.server_name,
            "version": who.version,
            "proto": _PROTO,
            # Go tools print this; there is no Go here, so it names what runs us.
            "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
            "twinwire": __version__,
            "host": who.host,
            "port": who.port,
            "max_connections": who.max_connections,
            "max_subscriptions": who.max_subscriptions,
            "ping_interval": who.ping_interval_ns,
            "ping_max": who.ping_max,
            "http_host": who.http_host,
            "http_port": who.http_port,
            "http_base_path": "",
            "https_port": 0,
            "max_control_line": who.max_control_line,
            "max_payload": who.max_payload,
            "max_pending": who.max_pending,
            **{name: {} for name in ("cluster", "gateway", "leaf", "mqtt", "websocket")},
            "jetstream": {},
            "write_deadline": who.write_deadline_ns,
            "start": start,
            "now": rfc3339(now_ns),
            "uptime": uptime(max(0, now_ns - who.start_ns) // NS),
            "mem": resident_bytes(),
            "cores": os.cpu_count() or 1,
            "gomaxprocs": 1,  # messages are handled by one thread
            "cpu": self._cpu.percent(),
            "connections": door.connections if door else 0,
            "total_connections": door.total_connections if door else 0,
            "routes": 0,
            "remotes": 0,
            "leafnodes": 0,
            "in_msgs": door.in_msgs if door else 0,
            "out_msgs": door.out_msgs if door else 0,
            "in_bytes": door.in_bytes if door else 0,
            "out_bytes": door.out_bytes if door else 0,
            "slow_consumers": door.slow_consumers if door else 0,
            "subscriptions": stats.subscriptions,
            "http_req_stats": dict(sorted(self.requests.items())),
            "config_load_time": start,
        }
        if not who.max_subscriptions:
            del page["max_subscriptions"]
        return page

    async def serve_varz(self, request: web.Request) -> web.Response:
        """GET /varz."""
        return _json(request, self.varz(), orjson.OPT_INDENT_2)

    async def serve_healthz(self, request: web.Request) -> web.Response:
        """GET /healthz: 200, or 503 with the reason."""
        for name in _HEALTH_SWITCHES:
            value = request.query.get(name, "")
            if value and value not in _BOOLEANS:
                reason = f'strconv.ParseBool: parsing "{value}": invalid syntax'
                return web.Response(
                    status=400, text=f"Error decoding boolean for '{name}': {reason}\n"
                )
        error = self.source.health()
        if error is None:
            return _json(request, {"status": "ok"})
        return _json(request, {"status": "unavailable", "error": error}, status=503)


def _json(
    request: web.Request, page: Mapping[str, Any], option: int = 0, status: int = 200
) -> web.Response:
    body = orjson.dumps(page, option=option)
    callback = request.query.get("callback", "")
    # A name only: whatever else stands here would run in the page that asks.
    if re.fullmatch(r"[A-Za-z_$][\w$.]{0,99}", callback, re.ASCII):
        body = b"%s(%s)" % (callback.encode(), body)
        return web.Response(status=status, body=body, content_type="application/javascript")
    return web.Response(status=status, body=body, content_type="application/json")


def make_app(source: MonitorSource, pages: Mapping[str, Handler] | None = None) -> web.Application:
    """The application of the monitoring door; `pages` adds paths that others provide."""
    monitor = Monitor(source)

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.match_info.http_exception is None:
            monitor.requests[request.path] += 1
        return await handler(request)

    app = web.Application(middlewares=[count])
    app.router.add_get("/varz", monitor.serve_varz)
    app.router.add_get("/healthz", monitor.serve_healthz)
    for path, handler in (pages or {}).items():
        app.router.add_get(path, handler)
    return app
