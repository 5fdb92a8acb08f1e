"""A client of the field while its channel is looked at and rewound."""

from __future__ import annotations

import asyncio
from typing import Any

import ansq
from ansq.tcp.types import ConnectionOptions
from harness import Server
from harness.http import nsq_channel, request

WAIT_S = 15.0


async def take(reader: Any, *bodies: bytes) -> None:
    for body in bodies:
        message = await asyncio.wait_for(reader.wait_for_message(), WAIT_S)
        assert (message.body, message.attempts) == (body, 1)
        await message.fin()


async def test_a_connected_reader_gets_everything_again(broker: Server, uniq: str) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[str(broker.nsq)])
    reader = await ansq.create_reader(
        uniq,
        "channel",
        nsqd_tcp_addresses=[str(broker.nsq)],
        connection_options=ConnectionOptions(auto_reconnect=False),
    )
    assert (await writer.mpub(uniq, b"one", b"two", b"three")).is_ok
    await take(reader, b"one", b"two", b"three")

    def ask(method: str, page: str, **query: object) -> Any:
        where = {"topic": uniq, "channel": "channel"}
        return request(broker.nsq_http, method, f"/v1/channel/{page}", **where, **query).json

    # what /stats says follows the FINs on another connection
    for _ in range(1000):
        if nsq_channel(broker.nsq_http, uniq, "channel")["in_flight_count"] == 0:
            break
    first = await asyncio.to_thread(ask, "POST", "rewind", to="oldest")
    assert first["seq"] == first["oldest_seq"] == 1
    await take(reader, b"one", b"two", b"three")
    await asyncio.to_thread(ask, "POST", "rewind", seq=3)
    await take(reader, b"three")
    await reader.close()
    assert (await writer.mpub(uniq, b"four", b"five")).is_ok
    page = await asyncio.to_thread(ask, "GET", "messages", body="text", state="waiting")
    assert [message["body"] for message in page["messages"]] == ["four", "five"]
    await writer.close()
