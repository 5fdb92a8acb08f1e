"""The asyncio NSQ client, for a second opinion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import ansq
import pytest
from ansq.tcp.types import ConnectionFeatures, ConnectionOptions
from support import Server

WAIT_S = 15.0


@pytest.fixture
async def writer(broker: Server) -> AsyncIterator[Any]:
    client = await ansq.create_writer(nsqd_tcp_addresses=[str(broker.nsq)])
    yield client
    await client.close()


async def _reader(server: Server, topic: str, **features: Any) -> Any:
    options = ConnectionOptions(features=ConnectionFeatures(**features), auto_reconnect=False)
    return await ansq.create_reader(
        topic, "channel", nsqd_tcp_addresses=[str(server.nsq)], connection_options=options
    )


async def _next(reader: Any) -> Any:
    message = await asyncio.wait_for(reader.wait_for_message(), WAIT_S)
    assert message is not None
    return message


async def test_publish_read_finish(broker: Server, writer: Any, uniq: str) -> None:
    assert (await writer.pub(uniq, b"one")).is_ok
    assert (await writer.mpub(uniq, b"two", b"three")).is_ok
    reader = await _reader(broker, uniq)
    for body in (b"one", b"two", b"three"):
        message = await _next(reader)
        assert (message.body, message.attempts) == (body, 1)
        await message.fin()
    await reader.close()


async def test_requeue_and_touch(broker: Server, writer: Any, uniq: str) -> None:
    assert (await writer.pub(uniq, b"again")).is_ok
    reader = await _reader(broker, uniq)
    first = await _next(reader)
    await first.touch()
    await first.req(0)
    second = await _next(reader)
    assert (second.id, second.attempts) == (first.id, 2)
    await second.fin()
    await reader.close()


async def test_deferred(broker: Server, writer: Any, uniq: str) -> None:
    reader = await _reader(broker, uniq)
    assert (await writer.dpub(uniq, b"later", 300)).is_ok
    assert (await writer.pub(uniq, b"now")).is_ok
    for body in (b"now", b"later"):
        message = await _next(reader)
        assert message.body == body
        await message.fin()
    await reader.close()


async def test_a_timeout_brings_the_message_back(broker: Server, writer: Any, uniq: str) -> None:
    assert (await writer.pub(uniq, b"slow")).is_ok
    reader = await _reader(broker, uniq, msg_timeout=1000)
    first = await _next(reader)
    second = await _next(reader)
    assert (second.id, second.attempts) == (first.id, 2)
    await second.fin()
    await reader.close()


async def test_a_reader_that_left_is_replaced(broker: Server, writer: Any, uniq: str) -> None:
    """CLS and close; what it had not finished goes to the next one."""
    assert (await writer.mpub(uniq, b"one", b"two")).is_ok
    reader = await _reader(broker, uniq, msg_timeout=1000)
    await (await _next(reader)).fin()
    await reader.close()
    reader = await _reader(broker, uniq)
    message = await _next(reader)
    assert message.body == b"two"
    await message.fin()
    await reader.close()
