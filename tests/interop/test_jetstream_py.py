"""JetStream with nats.py, as its users use it every day: streams, consumers, buckets, objects.

All of it runs against the original as well (TWINWIRE_TEST_TARGET=original).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    ObjectMeta,
    RetentionPolicy,
    StreamSource,
)
from nats.js.client import JetStreamContext
from nats.js.errors import (
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoKeysError,
    NotFoundError,
    ObjectDeletedError,
    ObjectNotFoundError,
)
from nats.js.kv import KeyValue
from support.nats_file import FileServer

WAIT_S = 10.0
LARGE = 100 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    folder = tmp_path_factory.mktemp("js")
    found = FileServer(folder / "server", f'jetstream {{ store_dir: "{folder}/store" }}\n')
    yield found
    found.close()


@pytest.fixture
async def client(server: FileServer) -> AsyncIterator[Client]:
    found = await nats.connect(f"nats://{server.address}", connect_timeout=5)
    yield found
    await found.close()


@pytest.fixture
def js(client: Client) -> JetStreamContext:
    return client.jetstream(timeout=WAIT_S)


async def filled(js: JetStreamContext, name: str, count: int, **config: Any) -> None:
    await js.add_stream(name=name, subjects=[f"{name}.>"], **config)
    for number in range(count):
        await js.publish(f"{name}.{number % 2}", b"%d" % number)


def metadata(message: Any) -> tuple[int, int, int, int]:
    """(stream seq, consumer seq, deliveries, pending)."""
    found = message.metadata
    return (
        found.sequence.stream,
        found.sequence.consumer,
        found.num_delivered,
        found.num_pending,
    )


# --- pull consumers ------------------------------------------------------------------------------


async def test_fetch_and_ack(js: JetStreamContext) -> None:
    await filled(js, "FETCH", 10)
    sub = await js.pull_subscribe("FETCH.>", "dur", stream="FETCH")
    first = await sub.fetch(4, timeout=WAIT_S)
    assert [m.data for m in first] == [b"0", b"1", b"2", b"3"]
    assert [metadata(m) for m in first] == [(i, i, 1, 10 - i) for i in range(1, 5)]
    for message in first:
        await message.ack_sync(timeout=WAIT_S)
    rest = await sub.fetch(100, timeout=1)
    assert len(rest) == 6
    info = await sub.consumer_info()
    assert (info.num_ack_pending, info.num_pending) == (6, 0)
    assert info.ack_floor is not None
    assert info.ack_floor.stream_seq == 4
    with pytest.raises(nats.errors.TimeoutError):
        await sub.fetch(1, timeout=0.2)


async def test_fetch_with_a_filter(js: JetStreamContext) -> None:
    await filled(js, "FILTER", 10)
    sub = await js.pull_subscribe("FILTER.1", "odd", stream="FILTER")
    assert [m.data for m in await sub.fetch(5, timeout=WAIT_S)] == [b"1", b"3", b"5", b"7", b"9"]


async def test_nak_term_and_progress(js: JetStreamContext) -> None:
    await filled(js, "NAK", 3)
    sub = await js.pull_subscribe(
        "NAK.>", "dur", stream="NAK", config=ConsumerConfig(ack_wait=30, max_deliver=5)
    )
    one, two, three = await sub.fetch(3, timeout=WAIT_S)
    await one.nak()
    await two.term()
    await three.in_progress()
    (again,) = await sub.fetch(1, timeout=WAIT_S)
    assert metadata(again) == (1, 4, 2, 0)
    await again.ack_sync(timeout=WAIT_S)
    await three.ack_sync(timeout=WAIT_S)
    info = await sub.consumer_info()
    assert (info.num_ack_pending, info.num_redelivered) == (0, 0)


async def test_messages_come_again_after_ack_wait(js: JetStreamContext) -> None:
    await filled(js, "AGAIN", 1)
    sub = await js.pull_subscribe(
        "AGAIN.>", "dur", stream="AGAIN", config=ConsumerConfig(ack_wait=0.3)
    )
    await sub.fetch(1, timeout=WAIT_S)
    (message,) = await sub.fetch(1, timeout=WAIT_S)
    assert metadata(message)[2] == 2


async def test_two_fetchers_share_a_work_queue(js: JetStreamContext) -> None:
    await js.add_stream(name="WORK", subjects=["WORK.>"], retention=RetentionPolicy.WORK_QUEUE)
    for number in range(20):
        await js.publish("WORK.a", b"%d" % number)
    subs = [await js.pull_subscribe("WORK.>", "dur", stream="WORK") for _ in range(2)]
    got = set()
    for sub in subs:
        for message in await sub.fetch(10, timeout=WAIT_S):
            got.add(int(message.data))
            await message.ack_sync(timeout=WAIT_S)
    assert got == set(range(20))
    assert (await js.stream_info("WORK")).state.messages == 0


# --- push consumers ------------------------------------------------------------------------------


async def test_push_with_a_durable(js: JetStreamContext) -> None:
    await filled(js, "PUSH", 5)
    sub = await js.subscribe("PUSH.>", durable="dur", stream="PUSH", manual_ack=True)
    got = [await sub.next_msg(WAIT_S) for _ in range(3)]
    for message in got:
        await message.ack_sync(timeout=WAIT_S)
    assert (await js.consumer_info("PUSH", "dur")).push_bound
    await sub.unsubscribe()


async def test_a_queue_of_subscribers(js: JetStreamContext) -> None:
    await js.add_stream(name="QUEUE", subjects=["QUEUE.>"])
    got: list[bytes] = []
    done = asyncio.Event()

    async def take(message: Any) -> None:
        got.append(message.data)
        if len(got) == 20:
            done.set()

    subs = [await js.subscribe("QUEUE.>", queue="q", stream="QUEUE", cb=take) for _ in range(3)]
    for number in range(20):
        await js.publish("QUEUE.a", b"%d" % number)
    await asyncio.wait_for(done.wait(), WAIT_S)
    assert sorted(map(int, got)) == list(range(20))
    for sub in subs:
        await sub.unsubscribe()


async def test_an_ordered_consumer(js: JetStreamContext) -> None:
    await js.add_stream(name="ORDERED", subjects=["ORDERED.>"])
    body = b"x" * 10_000
    for _ in range(600):
        await js.publish("ORDERED.a", body)
    sub = await js.subscribe("ORDERED.>", stream="ORDERED", ordered_consumer=True)
    for number in range(1, 601):
        message = await sub.next_msg(WAIT_S)
        assert message.metadata.sequence.stream == number
        assert message.metadata.num_pending == 600 - number
    await sub.unsubscribe()


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        (ConsumerConfig(deliver_policy=DeliverPolicy.LAST), [6]),
        (ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT), [5, 6]),
        (ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=4), [4, 5]),
        (ConsumerConfig(deliver_policy=DeliverPolicy.NEW), [7]),
    ],
)
async def test_start_positions(
    js: JetStreamContext, policy: ConsumerConfig, first: list[int], uniq: str
) -> None:
    await filled(js, uniq, 6)
    sub = await js.subscribe(f"{uniq}.>", stream=uniq, config=policy)
    await js.publish(f"{uniq}.new", b"7")
    got = [(await sub.next_msg(WAIT_S)).metadata.sequence.stream for _ in first]
    assert got == first
    await sub.unsubscribe()


# --- management ----------------------------------------------------------------------------------


async def test_consumers_are_managed(js: JetStreamContext) -> None:
    await filled(js, "MANAGE", 2)
    made = await js.add_consumer(
        "MANAGE",
        ConsumerConfig(durable_name="one", ack_policy=AckPolicy.EXPLICIT, description="first"),
    )
    assert (made.name, made.num_pending) == ("one", 2)
    await js.add_consumer("MANAGE", ConsumerConfig(durable_name="two", filter_subject="MANAGE.0"))
    assert sorted(info.name for info in await js.consumers_info("MANAGE")) == ["one", "two"]
    info = await js.consumer_info("MANAGE", "two")
    assert (info.config.filter_subject, info.num_pending) == ("MANAGE.0", 1)
    assert (await js.stream_info("MANAGE")).state.consumer_count == 2
    assert await js.delete_consumer("MANAGE", "one")
    with pytest.raises(NotFoundError):
        await js.consumer_info("MANAGE", "one")


async def test_a_consumer_is_updated(js: JetStreamContext) -> None:
    await filled(js, "UPDATE", 4)
    await js.add_consumer("UPDATE", ConsumerConfig(durable_name="c", max_ack_pending=5))
    made = await js.add_consumer(
        "UPDATE",
        ConsumerConfig(durable_name="c", max_ack_pending=7, filter_subject="UPDATE.1"),
    )
    assert (made.config.max_ack_pending, made.num_pending) == (7, 2)


# --- buckets -------------------------------------------------------------------------------------


@pytest.fixture
async def bucket(js: JetStreamContext, uniq: str) -> KeyValue:
    return await js.create_key_value(bucket=uniq, history=5)


async def test_put_and_get(bucket: KeyValue) -> None:
    assert await bucket.put("a", b"1") == 1
    assert await bucket.put("a", b"2") == 2
    entry = await bucket.get("a")
    assert (entry.value, entry.revision, entry.key) == (b"2", 2, "a")
    assert (await bucket.get("a", revision=1)).value == b"1"
    with pytest.raises(KeyNotFoundError):
        await bucket.get("b")


async def test_create_and_update(bucket: KeyValue) -> None:
    assert await bucket.create("a", b"1") == 1
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.create("a", b"2")
    assert await bucket.update("a", b"2", last=1) == 2
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.update("a", b"3", last=1)
    await bucket.delete("a")
    assert await bucket.create("a", b"4") == 4


async def test_delete_and_purge(bucket: KeyValue) -> None:
    for value in (b"1", b"2", b"3"):
        await bucket.put("a", value)
        await bucket.put("b", value)
    await bucket.delete("a")
    with pytest.raises(KeyNotFoundError):
        await bucket.get("a")
    await bucket.purge("b")
    with pytest.raises(NoKeysError):
        await bucket.keys()
    assert [(e.value, e.operation) for e in await bucket.history("a")] == [
        (b"1", None),
        (b"2", None),
        (b"3", None),
        (b"", "DEL"),
    ]
    assert [e.operation for e in await bucket.history("b")] == ["PURGE"]
    await bucket.purge_deletes(olderthan=-1)
    status = await bucket.status()
    assert status.values == 0


async def test_keys_and_status(bucket: KeyValue, uniq: str) -> None:
    for key in ("a.1", "a.2", "b.1"):
        await bucket.put(key, b"x")
        await bucket.put(key, b"y")
    assert sorted(await bucket.keys()) == ["a.1", "a.2", "b.1"]
    assert sorted(await bucket.keys(filters=["a."])) == ["a.1", "a.2"]
    status = await bucket.status()
    assert (status.bucket, status.values, status.history) == (uniq, 6, 5)


async def test_a_watcher(bucket: KeyValue) -> None:
    await bucket.put("a", b"1")
    await bucket.put("a", b"2")
    await bucket.put("b", b"3")
    watcher = await bucket.watchall()
    seen = [await watcher.updates(WAIT_S) for _ in range(3)]
    assert [(e.key, e.value) for e in seen[:2] if e] == [("a", b"2"), ("b", b"3")]
    assert seen[2] is None  # that was all there is
    await bucket.put("c", b"4")
    await bucket.delete("a")
    found = [await watcher.updates(WAIT_S) for _ in range(2)]
    assert [(e.key, e.operation) for e in found if e] == [("c", None), ("a", "DEL")]
    await watcher.stop()


async def test_watchers_of_some_keys(bucket: KeyValue) -> None:
    for key in ("a.1", "b.1", "a.2"):
        await bucket.put(key, b"x")
    watcher = await bucket.watch("a.*")
    seen = [await watcher.updates(WAIT_S) for _ in range(3)]
    assert [e.key if e else None for e in seen] == ["a.1", "a.2", None]
    await watcher.stop()
    watcher = await bucket.watch("a.*", meta_only=True, include_history=True)
    entry = await watcher.updates(WAIT_S)
    assert entry is not None
    assert entry.value in (b"", None)
    await watcher.stop()


async def test_a_watcher_of_an_empty_bucket(bucket: KeyValue) -> None:
    watcher = await bucket.watchall()
    assert await watcher.updates(WAIT_S) is None
    await bucket.put("a", b"1")
    entry = await watcher.updates(WAIT_S)
    assert entry is not None
    assert entry.key == "a"
    await watcher.stop()


async def test_buckets_are_deleted(js: JetStreamContext, bucket: KeyValue, uniq: str) -> None:
    await bucket.put("a", b"1")
    assert await js.delete_key_value(uniq)
    with pytest.raises(nats.js.errors.BucketNotFoundError):
        await js.key_value(uniq)


async def test_a_key_that_expires_leaves_a_marker(js: JetStreamContext, uniq: str) -> None:
    bucket = await js.create_key_value(bucket=f"ttl{uniq}", limit_marker_ttl=60)
    watcher = await bucket.watchall()
    assert await watcher.updates() is None  # nothing there
    await bucket.create("k", b"v", msg_ttl=1)
    assert (await watcher.updates(timeout=WAIT_S)).value == b"v"
    gone = await watcher.updates(timeout=WAIT_S)
    assert (gone.key, gone.operation) == ("k", "PURGE")


async def test_direct_gets(js: JetStreamContext, uniq: str) -> None:
    bucket = await js.create_key_value(bucket=uniq, direct=True)
    await bucket.put("a", b"1")
    assert (await bucket.get("a")).value == b"1"
    with pytest.raises(KeyNotFoundError):
        await bucket.get("b")


# --- objects -------------------------------------------------------------------------------------


async def test_objects(js: JetStreamContext, uniq: str) -> None:
    store = await js.create_object_store(bucket=uniq)
    data = bytes(range(256)) * 2000
    info = await store.put("name", data, ObjectMeta(description="d", headers={"H": "v"}))
    assert (info.size, info.chunks) == (len(data), 4)
    found = await store.get("name")
    assert found.data == data
    assert found.info.description == "d"
    assert (await store.get_info("name")).digest == info.digest
    await store.put("other", b"small")
    assert sorted(i.name for i in await store.list()) == ["name", "other"]
    await store.put("name", b"replaced")
    assert (await store.get("name")).data == b"replaced"
    await store.delete("name")
    assert (await store.get_info("name", show_deleted=True)).deleted
    with pytest.raises((ObjectNotFoundError, ObjectDeletedError)):
        await store.get("name")
    assert [i.name for i in await store.list() if not i.deleted] == ["other"]
    status = await store.status()
    assert status.bucket == uniq


async def test_a_watcher_of_objects(js: JetStreamContext, uniq: str) -> None:
    store = await js.create_object_store(bucket=uniq)
    await store.put("one", b"1")
    watcher = await store.watch()
    seen = [await watcher.updates(WAIT_S) for _ in range(2)]
    assert [info.name if info else None for info in seen] == ["one", None]
    await store.put("two", b"2")
    found = await watcher.updates(WAIT_S)
    assert found is not None
    assert found.name == "two"
    await watcher.stop()


async def test_a_sealed_store(js: JetStreamContext, uniq: str) -> None:
    store = await js.create_object_store(bucket=uniq)
    await store.put("one", b"1")
    await store.seal()
    with pytest.raises(nats.js.errors.APIError):
        await store.put("two", b"2")
    assert (await store.get("one")).data == b"1"


async def test_links(js: JetStreamContext, uniq: str) -> None:
    store = await js.create_object_store(bucket=uniq)
    await store.put("one", b"1")
    meta = {
        "name": "link",
        "bucket": uniq,
        "nuid": "x",
        "size": 0,
        "chunks": 0,
        "mtime": "2026-01-01T00:00:00Z",
        "options": {"link": {"bucket": uniq, "name": "one"}},
    }
    name = base64.urlsafe_b64encode(b"link").decode()
    await js.publish(
        f"$O.{uniq}.M.{name}", json.dumps(meta).encode(), headers={"Nats-Rollup": "sub"}
    )
    assert (await store.get("link")).data == b"1"


async def test_a_large_object(js: JetStreamContext, uniq: str, tmp_path: Path) -> None:
    path = tmp_path / "large"
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for number in range(100):
            block = number.to_bytes(4, "big") * (1 << 18)
            file.write(block)
            digest.update(block)
    store = await js.create_object_store(bucket=uniq)
    with path.open("rb") as file:
        info = await store.put("large", file)
    assert info.size == LARGE
    with (tmp_path / "copy").open("wb") as file:
        await store.get("large", writeinto=file)
    copied = hashlib.sha256((tmp_path / "copy").read_bytes())
    assert copied.hexdigest() == digest.hexdigest()
    await js.delete_object_store(uniq)


async def test_mirrors_and_sources(js: JetStreamContext) -> None:
    await js.add_stream(name="ORIGIN", subjects=["origin.*"])
    for number in range(10):
        await js.publish(f"origin.{number % 2}", b"%d" % number)
    await js.add_stream(name="MIRROR", mirror=StreamSource(name="ORIGIN"))
    await js.add_stream(
        name="SOURCED", sources=[StreamSource(name="ORIGIN", filter_subject="origin.1")]
    )
    mirrored = await js.pull_subscribe("origin.*", "reader", stream="MIRROR")
    sourced = await js.pull_subscribe("origin.1", "reader", stream="SOURCED")
    found = await read(mirrored, 10)
    assert [message.data for message in found] == [b"%d" % number for number in range(10)]
    assert [message.metadata.sequence.stream for message in found] == list(range(1, 11))
    found = await read(sourced, 5)
    assert [message.data for message in found] == [b"1", b"3", b"5", b"7", b"9"]
    header = (found[4].headers or {})["Nats-Stream-Source"]
    assert header.split()[:5] == ["ORIGIN", "10", "origin.1", ">", "origin.1"]
    info = await js.stream_info("SOURCED")
    assert info.sources is not None
    assert [source.name for source in info.sources] == ["ORIGIN"]


async def read(subscription: JetStreamContext.PullSubscription, count: int) -> list[Msg]:
    found: list[Msg] = []
    while len(found) < count:
        for message in await subscription.fetch(count - len(found), timeout=WAIT_S):
            await message.ack()
            found.append(message)
    return found
