"""A client of the field while its channel is looked at and rewound."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import ansq
import pytest
from ansq.tcp.types import ConnectionOptions
from support import Server
from support.clients.http import nsq_channel, request

pytestmark = pytest.mark.only_ours
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
        page = await asyncio.to_thread(nsq_channel, broker.nsq_http, uniq, "channel")
        if page["in_flight_count"] == 0:
            break
    else:
        raise AssertionError("a FIN was not taken")
    first = await asyncio.to_thread(ask, "POST", "rewind", to="oldest")
    assert first["seq"] == first["oldest_seq"] == 1
    await take(reader, b"one", b"two", b"three")
    await asyncio.to_thread(ask, "POST", "rewind", seq=3)
    await take(reader, b"three")
    await reader.close()
    assert (await writer.mpub(uniq, b"four", b"five")).is_ok
    page = await asyncio.to_thread(ask, "GET", "messages", state="waiting")
    assert [base64.b64decode(m["body"]) for m in page["messages"]] == [b"four", b"five"]
    await writer.close()
