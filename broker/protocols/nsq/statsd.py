"""nsqd's statistics for a statsd daemon: one round of UDP datagrams per interval.

    nsq.host_4151.topic.orders.message_count:12|c     increase since the last round
    nsq.host_4151.topic.orders.depth:3|g              the current value

The datagrams of a round are spread over the interval, so that receivers are not overloaded.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.engine.names import is_ephemeral
from broker.protocols.nsq import limits
from broker.protocols.nsq.http import stats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from broker.protocols.nsq.config import NsqConfig
    from broker.protocols.nsq.topics import Topics

LOG = logging.getLogger("broker.nsq.statsd")

_TOPIC_COUNTERS = ("message_count", "message_bytes")
_TOPIC_GAUGES = ("depth", "backend_depth")
_CHANNEL_NUMBERS = (  # key of the page, statsd name, kind
    ("message_count", "message_count", "c"),
    ("depth", "depth", "g"),
    ("backend_depth", "backend_depth", "g"),
    ("in_flight_count", "in_flight_count", "g"),
    ("deferred_count", "deferred_count", "g"),
    ("requeue_count", "requeue_count", "c"),
    ("timeout_count", "timeout_count", "c"),
    ("client_count", "clients", "g"),
)


def full_prefix(prefix: str, host: str, port: int) -> str:
    """`prefix` with %s replaced by the host's key, and a dot at its end."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    found = prefix.replace("%s", address.replace(".", "_").replace(":", "_"))
    return found if not found or found.endswith(".") else f"{found}."


def packets(lines: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Pack whole lines into datagrams of up to `size` bytes; a longer line is sent alone."""
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > size:
            yield packet
            packet = b""
        packet += line
    if packet:
        yield packet


class Round:
    """Converts pages of /stats to lines; remembers counters between rounds."""

    def __init__(self, config: NsqConfig, prefix: str) -> None:
        self.config = config
        self.prefix = prefix
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def lines(self, topics: list[stats.Page], memory: dict[str, int] | None) -> Iterator[bytes]:
        """All lines of one round."""
        self._now = {}
        for topic in topics:
            if not self._is_excluded(topic["topic_name"]):
                yield from self._topic(topic)
        if memory is not None:
            for name, value in memory.items():
                if name == "gc_total_runs":
                    yield self._line("mem.gc_runs", value, "c")
                else:
                    yield self._line(f"mem.{name}", value, "g")
        self._before = self._now

    def _is_excluded(self, name: str) -> bool:
        return self.config.statsd_exclude_ephemeral and is_ephemeral(name.encode())

    def _topic(self, page: stats.Page) -> Iterator[bytes]:
        start = f"topic.{page['topic_name']}"
        for key in _TOPIC_COUNTERS:
            yield self._line(f"{start}.{key}", page[key], "c")
        for key in _TOPIC_GAUGES:
            yield self._line(f"{start}.{key}", page[key], "g")
        yield from self._latency(start, page)
        for channel in page["channels"]:
            name = channel["channel_name"]
            if self._is_excluded(name):
                continue
            for key, word, kind in _CHANNEL_NUMBERS:
                yield self._line(f"{start}.channel.{name}.{word}", channel[key], kind)
            yield from self._latency(f"{start}.channel.{name}", channel)

    def _latency(self, start: str, page: stats.Page) -> Iterator[bytes]:
        for item in page["e2e_processing_latency"]["percentiles"] or ():
            name = f"{start}.e2e_processing_latency_{item['quantile'] * 100:.0f}"
            yield self._line(name, int(item["value"]), "g")

    def _line(self, name: str, value: int, kind: str) -> bytes:
        if kind == "c":
            self._now[name] = value
            before = self._before.get(name, 0)
            value -= before if before <= value else 0  # created again: it began at 0
        return f"{self.prefix}{name}:{value}|{kind}\n".encode()


class _Silent(asyncio.DatagramProtocol):
    """Ignores errors: statsd sends no answers, and a missing receiver must not end the reports."""

    def error_received(self, exc: Exception) -> None:
        LOG.debug("statsd: %s", exc)


class Statsd:
    """Sends one round per interval until cancelled."""

    def __init__(
        self,
        topics: Topics,
        config: NsqConfig,
        prefix: str,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """`topics`: the topics to report; `sleep(seconds)`: waits."""
        self.topics = topics
        self.config = config
        self.sleep = sleep
        self.round = Round(config, prefix)

    async def run(self) -> None:
        """Send rounds until cancelled."""
        interval = self.config.statsd_interval_ns / SECOND
        spread = max(0.0, interval - limits.STATSD_QUIET / SECOND)
        while True:
            await self.sleep(interval - spread)
            try:
                await self._send(spread)
            except Exception:
                LOG.exception("statsd: a round was lost")
                await self.sleep(spread)

    async def _send(self, spread: float) -> None:
        host, port = self.config.statsd_address or ("", 0)
        loop = asyncio.get_running_loop()
        opening = loop.create_datagram_endpoint(_Silent, remote_addr=(host or "localhost", port))
        try:
            transport, _ = await asyncio.wait_for(opening, limits.STATSD_DIAL / SECOND)
        except (OSError, TimeoutError) as problem:
            extra = fields(address=f"{host}:{port}", reason=str(problem) or "timed out")
            LOG.error("statsd cannot be reached", extra=extra)
            await self.sleep(spread)
            return
        try:
            lines = self.round.lines(await self._topics(), self._memory())
            found = list(packets(lines, self.config.statsd_udp_packet_size))
            for packet in found:
                transport.sendto(packet)
                await self.sleep(spread / len(found))
            if not found:
                await self.sleep(spread)
        finally:
            transport.close()

    async def _topics(self) -> list[stats.Page]:
        percentiles = self.config.e2e_processing_latency_percentiles
        return await stats.StatsPage(self.topics, None).topics(percentiles) or []

    def _memory(self) -> dict[str, int] | None:
        return stats.memory() if self.config.statsd_mem_stats else None
