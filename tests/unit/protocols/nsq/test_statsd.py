"""What a statsd daemon receives, on a real UDP socket; time is the test's."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

from support.fakes.nsq import OK, pub
from support.live.nsq import Client, on_uvloop, opened

from broker.base.settings import Address
from broker.protocols.nsq.config import NsqConfig
from broker.protocols.nsq.listener import NsqListener
from broker.protocols.nsq.statsd import Round, Statsd, full_prefix, packets


class Clock:
    """Stands still until the test lets it go on."""

    def __init__(self) -> None:
        self.waits: asyncio.Queue[float] = asyncio.Queue()
        self.go = asyncio.Semaphore(0)

    async def sleep(self, seconds: float) -> None:
        self.waits.put_nowait(seconds)
        await self.go.acquire()


def _receiver() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind(("127.0.0.1", 0))
    found.setblocking(False)
    return found


async def _received(receiver: socket.socket) -> list[str]:
    data = await asyncio.get_running_loop().sock_recv(receiver, 65536)
    return data.decode().splitlines()


def _settings(listener: NsqListener, port: int, **more: object) -> NsqConfig:
    base = {"statsd_address": Address("127.0.0.1", port), "statsd_udp_packet_size": 60_000}
    return replace(NsqConfig(), **{**base, **more})


def test_prefix() -> None:
    assert full_prefix("nsq.%s", "10.0.0.1", 4151) == "nsq.10_0_0_1_4151."
    assert full_prefix("nsq.", "h", 1) == "nsq."
    assert full_prefix("", "h", 1) == ""


def test_lines_are_never_cut() -> None:
    lines = [b"a" * 30, b"b" * 30, b"c" * 100, b"d"]
    assert list(packets(lines, 64)) == [b"a" * 30 + b"b" * 30, b"c" * 100, b"d"]
    assert list(packets([], 64)) == []


@on_uvloop
async def test_a_round_and_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        client = await Client.dial(listener)
        assert await client.ask(pub(b"t", b"abc")) == OK
        assert await client.ask(pub(b"t", b"de")) == OK
        listener.engine.open_log("t").open_cursor("c")
        clock = Clock()
        with _receiver() as receiver:
            config = _settings(listener, receiver.getsockname()[1])
            task = asyncio.create_task(Statsd(listener.topics, config, "p.", clock.sleep).run())
            assert await clock.waits.get() == 1.0
            clock.go.release()
            lines = await _received(receiver)
            assert lines[:4] == [
                "p.topic.t.message_count:2|c",
                "p.topic.t.message_bytes:5|c",
                "p.topic.t.depth:0|g",
                "p.topic.t.backend_depth:0|g",
            ]
            assert lines[4:12] == [
                "p.topic.t.channel.c.message_count:2|c",
                "p.topic.t.channel.c.depth:2|g",
                "p.topic.t.channel.c.backend_depth:2|g",
                "p.topic.t.channel.c.in_flight_count:0|g",
                "p.topic.t.channel.c.deferred_count:0|g",
                "p.topic.t.channel.c.requeue_count:0|c",
                "p.topic.t.channel.c.timeout_count:0|c",
                "p.topic.t.channel.c.clients:0|g",
            ]
            names = [line.partition(":")[0] for line in lines[12:]]
            memory = "objects idle_bytes in_use_bytes released_bytes"
            pauses = [f"p.mem.gc_pause_usec_{n}" for n in (100, 99, 95)]
            assert names == [
                *(f"p.mem.heap_{name}" for name in memory.split()),
                *pauses,
                "p.mem.next_gc_bytes",
                "p.mem.gc_runs",
            ]
            assert lines[-1].endswith("|c")
            assert await clock.waits.get() == 59.0
            assert await client.ask(pub(b"t", b"f")) == OK
            clock.go.release()
            assert await clock.waits.get() == 1.0
            clock.go.release()
            lines = await _received(receiver)
            assert lines[:2] == ["p.topic.t.message_count:1|c", "p.topic.t.message_bytes:1|c"]
            task.cancel()


@on_uvloop
async def test_packets_are_spread_over_the_interval(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        listener.engine.open_log("t")
        clock = Clock()
        with _receiver() as receiver:
            more = {"statsd_udp_packet_size": 64, "statsd_mem_stats": False}
            config = _settings(listener, receiver.getsockname()[1], **more)
            task = asyncio.create_task(Statsd(listener.topics, config, "p.", clock.sleep).run())
            assert await clock.waits.get() == 1.0
            for first in ("message_count", "depth"):
                clock.go.release()
                lines = await _received(receiver)
                assert lines[0] == f"p.topic.t.{first}:0|{'g' if first == 'depth' else 'c'}"
                assert await clock.waits.get() == 29.5
            task.cancel()


def test_ephemeral_names_are_left_out_when_asked() -> None:
    counts = "message requeue timeout client in_flight deferred"
    numbers = dict.fromkeys((f"{name}_count" for name in counts.split()), 0)
    numbers |= dict.fromkeys(("message_bytes", "depth", "backend_depth"), 0)
    latency = {"e2e_processing_latency": {"percentiles": [{"quantile": 0.99, "value": 7.9}]}}
    channels = [{**numbers, **latency, "channel_name": name} for name in ("c", "d#ephemeral")]
    topics = [
        {**numbers, **latency, "topic_name": name, "channels": channels}
        for name in ("t", "u#ephemeral")
    ]
    kept = b"".join(Round(NsqConfig(statsd_exclude_ephemeral=True), "").lines(topics, None))
    assert b"ephemeral" not in kept
    assert b"topic.t.e2e_processing_latency_99:7|g\n" in kept
    assert b"topic.t.channel.c.e2e_processing_latency_99:7|g\n" in kept
    every = b"".join(Round(NsqConfig(), "").lines(topics, None))
    assert b"topic.u#ephemeral.channel.d#ephemeral.depth:0|g\n" in every


def _first(made: Round, page: dict[str, object]) -> bytes:
    first, *_ = made.lines([page], None)
    return first


def test_a_counter_that_began_again_is_not_negative() -> None:
    page = {"topic_name": "t", "channels": [], "e2e_processing_latency": {"percentiles": None}}
    page |= {"message_count": 9, "message_bytes": 9, "depth": 0, "backend_depth": 0}
    made = Round(NsqConfig(), "")
    assert _first(made, page) == b"topic.t.message_count:9|c\n"
    assert _first(made, page) == b"topic.t.message_count:0|c\n"
    page["message_count"] = 4
    assert _first(made, page) == b"topic.t.message_count:4|c\n"


@on_uvloop
async def test_no_resolver_and_no_receiver_cost_nothing(tmp_path: Path) -> None:
    """A name that cannot be found, then a port where nobody listens: it goes on."""
    async with opened(tmp_path) as listener:
        with _receiver() as receiver:
            port = receiver.getsockname()[1]
        for address in (Address("no-such-host.invalid", 8125), Address("127.0.0.1", port)):
            clock = Clock()
            config = replace(NsqConfig(), statsd_address=address)
            task = asyncio.create_task(Statsd(listener.topics, config, "p.", clock.sleep).run())
            for _ in range(4):
                await clock.waits.get()
                clock.go.release()
            await clock.waits.get()
            assert not task.done()
            task.cancel()
