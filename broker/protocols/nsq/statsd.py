"""Counters for a statsd over UDP, under nsqd's names.

Counters are sent as what was added since the last time, packets are spread over the interval; a
receiver that is not there costs nothing. Source: nsqd/statsd.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from broker import limits
from broker.protocols.nsq import stats

if TYPE_CHECKING:
    from broker.core.engine import Engine

LOG = logging.getLogger("broker.nsq.statsd")

_MEMORY_GAUGES = (
    *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
    *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"),
)


class StatsdSettings(Protocol):
    """The part of config.NsqConfig that is used here."""

    @property
    def statsd_address(self) -> str: ...
    @property
    def statsd_interval_ns(self) -> int: ...
    @property
    def statsd_prefix(self) -> str: ...
    @property
    def statsd_mem_stats(self) -> bool: ...
    @property
    def statsd_udp_packet_size(self) -> int: ...
    @property
    def statsd_exclude_ephemeral(self) -> bool: ...


def prefix_of(pattern: str, host: str) -> str:
    """`nsq.%s` and `10.0.0.1:4151` -> `nsq.10_0_0_1_4151.`"""
    prefix = pattern.replace("%s", host.replace(".", "_").replace(":", "_"))
    return prefix if not prefix or prefix.endswith(".") else prefix + "."


def packets(lines: Iterable[str], size: int) -> Iterator[bytes]:
    """Whole lines in datagrams of at most `size` bytes; a longer line goes alone."""
    packet = b""
    for line in lines:
        data = line.encode()
        if packet and len(packet) + len(data) > size:
            yield packet
            packet = b""
        packet += data
    if packet:
        yield packet


class Counters:
    """What the lines say, and what was said before."""

    def __init__(self, engine: Engine, config: StatsdSettings, prefix: str) -> None:
        self.engine = engine
        self.config = config
        self.prefix = prefix
        self.said: dict[str, int] = {}

    def lines(self) -> list[str]:
        """One round; the next one counts from here."""
        said: dict[str, int] = {}
        lines = [self._line(name, value, kind, said) for name, value, kind in self._values()]
        self.said = said
        return lines

    def _line(self, name: str, value: int, kind: str, said: dict[str, int]) -> str:
        if kind == "c":
            said[name] = value
            before = self.said.get(name, 0)
            # what was deleted and made anew counts from nothing
            value = value - before if value >= before else value
        return f"{self.prefix}{name}:{value}|{kind}\n"

    def _values(self) -> Iterator[tuple[str, int, str]]:
        skip = self.config.statsd_exclude_ephemeral
        for topic, log in sorted(self.engine.logs.items()):
            if skip and topic.endswith("#ephemeral"):
                continue
            name = f"topic.{topic}"
            yield f"{name}.message_count", log.message_count, "c"
            yield f"{name}.message_bytes", log.message_bytes, "c"
            yield f"{name}.depth", log.depth, "g"
            yield f"{name}.backend_depth", log.backend_depth, "g"
            for channel, cursor in sorted(log.cursors.items()):
                if skip and channel.endswith("#ephemeral"):
                    continue
                one = f"{name}.channel.{channel}"
                yield f"{one}.message_count", cursor.message_count, "c"
                yield f"{one}.depth", cursor.depth, "g"
                yield f"{one}.backend_depth", 0 if log.folder is None else cursor.depth, "g"
                yield f"{one}.in_flight_count", cursor.in_flight_count, "g"
                yield f"{one}.deferred_count", cursor.deferred_count, "g"
                yield f"{one}.requeue_count", cursor.requeue_count, "c"
                yield f"{one}.timeout_count", cursor.timeout_count, "c"
                yield f"{one}.clients", cursor.consumers, "g"
        if self.config.statsd_mem_stats:
            memory = stats.memory()
            for gauge in _MEMORY_GAUGES:
                yield f"mem.{gauge}", memory[gauge], "g"
            yield "mem.gc_runs", memory["gc_total_runs"], "c"


class Statsd:
    """Sends a round every interval until it is stopped."""

    def __init__(
        self,
        engine: Engine,
        config: StatsdSettings,
        host: str,
        wait: Callable[[float], asyncio.Future[None]] | None = None,
    ) -> None:
        """`host`: what %s in the prefix stands for; `wait(seconds)` instead of asyncio's sleep."""
        self.config = config
        self.counters = Counters(engine, config, prefix_of(config.statsd_prefix, host))
        self.wait = wait or asyncio.sleep
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        interval_s = self.config.statsd_interval_ns / limits.SECOND
        while True:
            await self.wait(interval_s)
            try:
                await self._push(max(interval_s - 1, 0))
            except (OSError, ValueError) as problem:
                address = self.config.statsd_address
                LOG.error("failed to push to statsd(%s): %s", address, problem)

    async def _push(self, spread_s: float) -> None:
        host, _, port = self.config.statsd_address.rpartition(":")
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(host.strip("[]"), int(port))
        )
        try:
            found = list(packets(self.counters.lines(), self.config.statsd_udp_packet_size))
            for packet in found:
                transport.sendto(packet)
                if len(found) > 1:
                    await self.wait(spread_s / len(found))
        finally:
            transport.close()

    async def stop(self) -> None:
        """Send no more."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
