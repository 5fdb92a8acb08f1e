"""What a statsd receives, on a real socket; time is the test's."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from live_nsq import Client, on_uvloop, opened

from broker.config import NsqConfig
from broker.protocols.nsq.statsd import Counters, Statsd, packets, prefix_of


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [("nsq.%s", "nsq.10_0_0_1_4151."), ("a.", "a."), ("", ""), ("%s.x", "10_0_0_1_4151.x.")],
)
def test_prefixes(pattern: str, prefix: str) -> None:
    assert prefix_of(pattern, "10.0.0.1:4151") == prefix


def test_packets_hold_whole_lines() -> None:
    lines = ["a" * 10 + "\n", "b" * 10 + "\n", "c" * 50 + "\n", "d\n"]
    assert list(packets(lines, 22)) == [
        b"a" * 10 + b"\n" + b"b" * 10 + b"\n",
        b"c" * 50 + b"\n",
        b"d\n",
    ]
    assert list(packets([], 22)) == []


async def published(client: Client, topic: str, count: int) -> None:
    for _ in range(count):
        await client.ask(f"PUB {topic}\n".encode() + b"\0\0\0\3abc")


@on_uvloop
async def test_counters_are_what_was_added(tmp_path: Path) -> None:
    config = replace(NsqConfig(), statsd_mem_stats=False, statsd_exclude_ephemeral=True)
    async with opened(tmp_path) as door:
        client = await Client.dial(door)
        await published(client, "t", 3)
        await published(client, "e#ephemeral", 1)
        door.engine.log("t").open_cursor("c")  # type: ignore[union-attr]
        counters = Counters(door.engine, config, "p.")
        assert counters.lines() == [
            "p.topic.t.message_count:3|c\n",
            "p.topic.t.message_bytes:9|c\n",
            "p.topic.t.depth:0|g\n",
            "p.topic.t.backend_depth:0|g\n",
            "p.topic.t.channel.c.message_count:3|c\n",
            "p.topic.t.channel.c.depth:3|g\n",
            "p.topic.t.channel.c.backend_depth:3|g\n",
            "p.topic.t.channel.c.in_flight_count:0|g\n",
            "p.topic.t.channel.c.deferred_count:0|g\n",
            "p.topic.t.channel.c.requeue_count:0|c\n",
            "p.topic.t.channel.c.timeout_count:0|c\n",
            "p.topic.t.channel.c.clients:0|g\n",
        ]
        await published(client, "t", 2)
        assert counters.lines()[0] == "p.topic.t.message_count:2|c\n"
        assert counters.lines()[0] == "p.topic.t.message_count:0|c\n"
        door.engine.delete_log("t")
        await published(client, "t", 1)
        assert counters.lines()[0] == "p.topic.t.message_count:1|c\n"


@on_uvloop
async def test_a_receiver_gets_packets_spread_over_the_interval(tmp_path: Path) -> None:
    ticks: asyncio.Queue[None] = asyncio.Queue()
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await ticks.get()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        address = f"127.0.0.1:{receiver.getsockname()[1]}"
        config = replace(NsqConfig(), statsd_address=address, statsd_udp_packet_size=100)
        loop = asyncio.get_running_loop()
        async with opened(tmp_path) as door:
            statsd = Statsd(door.engine, config, "h:1", wait)  # type: ignore[arg-type]
            got = b""
            while b"gc_runs" not in got:
                ticks.put_nowait(None)
                packet = await loop.sock_recv(receiver, 1000)
                assert len(packet) <= 100
                got += packet
            assert all(line.startswith(b"nsq.h_1.mem.") for line in got.splitlines())
            assert waits[0] == 60
            assert sum(waits[1:]) <= 59.001
            await statsd.stop()


@on_uvloop
async def test_nobody_listens_and_no_such_host(tmp_path: Path) -> None:
    rounds = iter(range(3))
    third = asyncio.Event()

    async def wait(_: float) -> None:
        if next(rounds, None) is None:
            third.set()
            await asyncio.Event().wait()

    async with opened(tmp_path) as door:
        for address in ("127.0.0.1:1", "no host.invalid:1", "nonsense"):
            config = replace(NsqConfig(), statsd_address=address)
            statsd = Statsd(door.engine, config, "h:1", wait)  # type: ignore[arg-type]
            await third.wait()
            assert not statsd.task.done()
            await statsd.stop()
