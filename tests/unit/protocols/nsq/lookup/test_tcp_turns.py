"""What one peer of nsqlookupd, or one page, may do before other connections are served."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from support.clients.peer import sized

from broker.base.units import MINUTE, MS
from broker.protocols.nsq import limits
from broker.protocols.nsq.http.app import Encoded, Query
from broker.protocols.nsq.lookup.http import LookupApi
from broker.protocols.nsq.lookup.registry import Registry
from broker.protocols.nsq.lookup.tcp import LookupPeer, Peers

NODE = {"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "v", "hostname": "h"}
COUNT = 100


class Clock:
    """Each look at it takes a quarter of a millisecond."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return self.looks * MS // 4


class Transport(asyncio.Transport):
    """Counts answers."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 5)})
        self.answers: list[bytes] = []

    def write(self, data: Any) -> None:
        self.answers.append(data[4:])

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def test_a_peer_goes_on_in_the_next_turn_and_so_does_its_end() -> None:
    clock = Clock()
    registry = Registry(5 * MINUTE, MINUTE)
    peers = Peers(registry, clock, 10 * MINUTE, dict)
    peer, transport = LookupPeer(peers), Transport()
    peer.connection_made(transport)
    peer.data_received(b"  V1IDENTIFY\n" + sized(json.dumps(NODE).encode()))
    peer.data_received(b"".join(b"REGISTER t%d\n" % number for number in range(COUNT)))
    made = [len(registry.topics)]
    while made[-1] < COUNT:
        await asyncio.sleep(0)
        made.append(len(registry.topics))
    most = 4 * limits.NSQ_LOOKUP_TURN // MS
    assert max(after - before for before, after in zip([0, *made], made, strict=False)) <= most
    assert transport.answers[1:] == [b"OK"] * COUNT

    def registered() -> int:
        return sum(len(entry.producers) for entry in registry.entries())

    assert registered() == COUNT + 1
    api = LookupApi(registry, clock)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    page = await api.debug(cast("Any", None), Query(""))
    task.cancel()
    assert turns > COUNT // most
    assert isinstance(page, Encoded)
    shown = json.loads(page)
    assert set(shown) == {"client::", *(f"topic:t{number}:" for number in range(COUNT))}
    assert shown["topic:t5:"][0]["broadcast_address"] == "b"

    peer.connection_lost(None)
    assert not registry.clients.producers
    left = [registered()]
    while left[-1]:
        await asyncio.sleep(0)
        left.append(registered())
    assert max(b - a for b, a in zip([COUNT, *left], left, strict=False)) <= most


async def test_a_page_without_entries() -> None:
    api = LookupApi(Registry(5 * MINUTE, MINUTE), Clock())
    assert await api.debug(cast("Any", None), Query("")) == b"{}"
