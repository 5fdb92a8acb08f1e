"""JetStream clients with the brokers of `twinwire.testing`: streams, buckets, faults, restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import nats
import pytest
from nats.js.errors import APIError, KeyNotFoundError

from twinwire.testing import Broker

WAIT_S = 30.0
DELAY_S = 0.3


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


async def test_a_stream_a_bucket_and_a_store(shared: Broker, uniq: str) -> None:
    client = await nats.connect(shared.nats_url)
    js = client.jetstream()
    await js.add_stream(name=uniq, subjects=[f"{uniq}.>"])
    assert (await js.publish(f"{uniq}.a", b"one")).seq == 1
    reader = await js.pull_subscribe(f"{uniq}.>", durable="reader")
    [message] = await reader.fetch(1, timeout=WAIT_S)
    await message.ack_sync()
    bucket = await js.create_key_value(bucket=uniq)
    await bucket.put("color", b"red")
    assert (await bucket.get("color")).value == b"red"
    store = await js.create_object_store(uniq)
    await store.put("file", b"content")
    assert (await store.get("file")).data == b"content"
    await client.close()


async def test_a_full_disk(shared: Broker, uniq: str) -> None:
    """Publishers are refused, readers go on, and it works again after the fault."""
    client = await nats.connect(shared.nats_url)
    js = client.jetstream()
    await js.add_stream(name=uniq, subjects=[f"{uniq}.>"])
    bucket = await js.create_key_value(bucket=uniq)
    await js.publish(f"{uniq}.a", b"before")
    reader = await js.pull_subscribe(f"{uniq}.>", durable="reader")
    with shared.faults.full_disk():
        with pytest.raises(APIError) as caught:
            await js.publish(f"{uniq}.a", b"refused", timeout=WAIT_S)
        assert caught.value.err_code in (10023, 10077)
        with pytest.raises(APIError):
            await bucket.put("color", b"red")
        [message] = await reader.fetch(1, timeout=WAIT_S)
        assert message.data == b"before"
    assert (await js.publish(f"{uniq}.a", b"after", timeout=WAIT_S)).seq == 2
    with pytest.raises(KeyNotFoundError):
        await bucket.get("color")
    await client.close()


async def test_a_slow_disk(shared: Broker, uniq: str) -> None:
    """An acknowledgement waits for the disk; a stream in memory does not."""
    client = await nats.connect(shared.nats_url)
    js = client.jetstream()
    await js.add_stream(name=uniq, subjects=[uniq])
    await js.add_stream(name=f"{uniq}-memory", subjects=[f"{uniq}-memory"], storage="memory")
    with shared.faults.slow_disk(DELAY_S):
        start = time.monotonic()
        stored = asyncio.create_task(js.publish(uniq, b"x", timeout=WAIT_S))
        await js.publish(f"{uniq}-memory", b"x", timeout=WAIT_S)
        assert not stored.done()
        await stored
        assert time.monotonic() - start >= DELAY_S
    await client.close()


@pytest.mark.parametrize("end", ["kill", "restart"])
async def test_streams_survive(uniq: str, end: str) -> None:
    async with Broker() as broker:
        client = await nats.connect(broker.nats_url, max_reconnect_attempts=-1)
        js = client.jetstream()
        await js.add_stream(name=uniq, subjects=[uniq])
        for number in range(20):
            await js.publish(uniq, b"%d" % number)
        await client.close()
        await asyncio.to_thread(getattr(broker, end))
        if end == "kill":
            await asyncio.to_thread(broker.start)
        client = await nats.connect(broker.nats_url)
        js = client.jetstream()
        assert (await js.stream_info(uniq)).state.last_seq == 20
        assert (await js.get_msg(uniq, 20)).data == b"19"
        await client.close()
