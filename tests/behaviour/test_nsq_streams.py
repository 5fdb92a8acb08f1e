"""One log for both worlds: a stream of JetStream that is a topic of NSQ, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from support import RawPeer, Server, backups, nsq_peer
from support.clients.http import Answer, request
from support.clients.lookup import make_lookup
from support.clients.peer import Frame, PeerError, sized
from support.clients.upload import block
from support.servers.authd import AuthServer, Reply, grant, row
from support.stan.client import StanClient

from broker.base.durable import save, unsealed

if TYPE_CHECKING:
    from conftest import StartBroker
    from support.fixtures import Connect

pytestmark = pytest.mark.only_ours

WAIT_S = 10.0
SECOND = 10**9
KEY = "twinwire.nsq_topic"


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    """What is to be closed with the test."""
    with contextlib.ExitStack() as stack:
        yield stack


async def ask(client: Client, verb: str, body: Any = b"") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads((await client.request(f"$JS.API.{verb}", data, timeout=WAIT_S)).data)


def stream_config(name: str, topic: str, **config: Any) -> dict[str, Any]:
    return {
        "name": name.upper(),
        "subjects": [f"{name}.>"],
        "metadata": {KEY: topic},
        **config,
    }


async def make(client: Client, name: str, **config: Any) -> str:
    """A stream of this name in capitals that stands for the topic `name.t`; the topic."""
    topic = f"{name}.t"
    found = await ask(client, f"STREAM.CREATE.{name.upper()}", stream_config(name, topic, **config))
    assert "error" not in found, found
    return topic


async def update(client: Client, name: str, **config: Any) -> Any:
    return await ask(client, f"STREAM.UPDATE.{name.upper()}", {"name": name.upper(), **config})


async def state(client: Client, name: str) -> Any:
    return (await ask(client, f"STREAM.INFO.{name.upper()}"))["state"]


async def consumer(client: Client, name: str, channel: str = "ch") -> Any:
    return await ask(client, f"CONSUMER.INFO.{name.upper()}.{channel}")


async def eventually(check: Callable[[], Awaitable[bool]], within_s: float = WAIT_S) -> None:
    """Wait for what the server does without an answer."""
    end = time.monotonic() + within_s
    while not await check():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


class Reader:
    """An NSQ client of a channel; heartbeats are left out."""

    def __init__(self, server: Server, topic: str, channel: str = "ch", **identify: Any) -> None:
        self.peer: RawPeer = nsq_peer(server.nsq, {"heartbeat_interval": 60_000, **identify})
        self.peer.command(f"SUB {topic} {channel}")
        self.peer.expect_frame("response", b"OK")

    def rdy(self, count: int) -> Reader:
        self.peer.command(f"RDY {count}")
        return self

    def next(self, body: bytes | None = None, attempts: int = 1) -> Frame:
        frame = self.peer.read_frame()
        assert frame.kind == "message", frame
        assert body is None or (frame.body, frame.attempts) == (body, attempts)
        return frame

    def say(self, verb: str, frame: Frame, *more: object) -> None:
        self.peer.command(" ".join([verb, frame.message_id.decode(), *map(str, more)]))

    def barrier(self) -> None:
        """All commands so far were run, and no message has come: an invalid one is answered."""
        self.peer.command("FIN ffffffffffffffff")
        self.peer.expect_frame(
            "error", b"E_FIN_FAILED FIN ffffffffffffffff failed ID not in flight"
        )

    def settle(self) -> None:
        """All commands so far were run; messages that come meanwhile are left."""
        self.peer.command("FIN ffffffffffffffff")
        while self.peer.read_frame().kind != "error":
            pass

    def close(self) -> None:
        self.peer.close()


def publish(server: Server, topic: str, *bodies: bytes) -> None:
    with nsq_peer(server.nsq) as peer:
        for body in bodies:
            peer.command(f"PUB {topic}", body)
        for _ in bodies:
            peer.expect_frame("response", b"OK")


def refusal(server: Server, command: str, body: bytes) -> bytes:
    """The error that a publish gets; the connection ends after it."""
    with nsq_peer(server.nsq) as peer:
        peer.command(command, body)
        frame = peer.read_frame()
        peer.expect_close()
    assert frame.kind == "error"
    return frame.payload


def parts(*bodies: bytes) -> bytes:
    return len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies))


def post(server: Server, path: str, body: bytes | None = None, **query: object) -> Answer:
    return request(server.nsq_http, "POST", path, body, **query)


def stats(server: Server, topic: str) -> Any:
    answer = request(server.nsq_http, "GET", "/stats", format="json", topic=topic)
    [found] = answer.json["topics"]
    return found


# --- one log -------------------------------------------------------------------------------------


async def test_one_log_for_both(broker: Server, connect: Connect, uniq: str) -> None:
    """A channel and a pull consumer read the same messages of one log, from both publishers."""
    client = await connect(broker)
    topic = await make(client, uniq)
    js = client.jetstream()
    pull = await js.pull_subscribe(topic, durable="pull", stream=uniq.upper())
    publish(broker, topic, b"nsq")
    ack = await js.publish(topic, b"nats", headers={"A": "b"})
    assert ack.seq == 2
    await js.publish(f"{uniq}.other", b"not of the topic")
    reader = Reader(broker, topic).rdy(10)
    first, second = reader.next(b"nsq"), reader.next(b"nats")
    assert [int(f.message_id, 16) for f in (first, second)] == [1, 2]
    for frame in (first, second):
        reader.say("FIN", frame)
    reader.barrier()
    found = await pull.fetch(2, timeout=WAIT_S)
    assert [(m.data, m.metadata.sequence.stream) for m in found] == [(b"nsq", 1), (b"nats", 2)]
    assert found[0].metadata.timestamp.timestamp() * 1e9 == pytest.approx(
        first.timestamp_ns, abs=10_000
    )
    for message in found:
        await message.ack()
    assert (await state(client, uniq))["messages"] == 3
    info = await consumer(client, uniq)
    assert info["ack_floor"]["stream_seq"] == 2
    assert info["config"]["durable_name"] == "ch"
    assert info["config"]["filter_subject"] == topic
    assert info["config"]["ack_policy"] == "explicit"
    reader.close()


async def test_live_subscribers_get_it_once(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    sub = await client.subscribe(f"{uniq}.>")
    await client.flush()
    publish(broker, topic, b"one", b"two")
    messages = [await sub.next_msg(WAIT_S) for _ in range(2)]
    assert [(m.subject, m.data, m.reply) for m in messages] == [
        (topic, b"one", ""), (topic, b"two", "")
    ]  # fmt: skip
    await client.flush()
    assert sub.pending_msgs == 0
    assert (await state(client, uniq))["last_seq"] == 2


async def test_both_kinds_of_clients_share_a_consumer(
    broker: Server, connect: Connect, uniq: str
) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic, "work").rdy(1)
    publish(broker, topic, *[b"%d" % n for n in range(4)])
    held = reader.next(b"0")
    pull = await client.jetstream().pull_subscribe_bind("work", uniq.upper())
    rest = await pull.fetch(3, timeout=WAIT_S)
    assert [m.data for m in rest] == [b"1", b"2", b"3"]
    reader.peer.command(f"FIN {2:016x}")  # a client of JetStream has it
    assert reader.peer.read_frame().payload == (
        b"E_FIN_FAILED FIN 0000000000000002 failed client does not own message"
    )
    await rest[0].nak()
    await client.flush()
    reader.say("FIN", held)
    again = reader.next(b"1", attempts=2)
    reader.say("FIN", again)
    for message in rest[1:]:
        await message.ack_sync()
    reader.barrier()
    info = await consumer(client, uniq, "work")
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
    reader.close()


async def test_channels_begin_as_those_of_a_topic(
    broker: Server, connect: Connect, uniq: str
) -> None:
    """The first one with what there is, the next one with what comes; a client of JetStream may
    say otherwise."""
    client = await connect(broker)
    topic = await make(client, uniq)
    publish(broker, topic, b"old")
    first = Reader(broker, topic, "first").rdy(5)
    first.next(b"old")
    second = Reader(broker, topic, "second").rdy(5)
    config = {
        "durable_name": "third", "ack_policy": "explicit", "filter_subject": topic,
        "deliver_policy": "all",
    }  # fmt: skip
    body = {"stream_name": uniq.upper(), "config": config}
    assert "error" not in await ask(client, f"CONSUMER.CREATE.{uniq.upper()}.third.{topic}", body)
    third = Reader(broker, topic, "third").rdy(5)
    third.next(b"old")
    publish(broker, topic, b"new")
    for reader in (first, second, third):
        reader.next(b"new")
        reader.close()


async def test_a_channel_begins_when_it_is_asked_for(
    broker: Server, connect: Connect, uniq: str
) -> None:
    """It has what others publish before its creation is answered, as a channel of a topic has."""
    topic = await make(await connect(broker), uniq)
    Reader(broker, topic, "first").close()
    with ExitStack() as peers:
        readers = [
            peers.enter_context(nsq_peer(broker.nsq, {"heartbeat_interval": 60_000}))
            for _ in range(20)
        ]
        writer = peers.enter_context(nsq_peer(broker.nsq))
        for number, reader in enumerate(readers):
            body = b"%d" % number
            reader.command(f"SUB {topic} channel{number}")
            reader.until_taken()
            writer.command(f"PUB {topic}", body)
            writer.expect_frame("response", b"OK")
            reader.expect_frame("response", b"OK")
            reader.command("RDY 1")
            assert reader.read_frame().body == body


async def test_names_with_dots(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic, "a.b-c_d").rdy(1)
    publish(broker, topic, b"x")
    reader.next(b"x")
    assert (await consumer(client, uniq, "a%2Eb-c_d"))["num_ack_pending"] == 1
    assert [c["channel_name"] for c in stats(broker, topic)["channels"]] == ["a.b-c_d"]
    reader.close()


# --- FIN, REQ, TOUCH, timeouts -------------------------------------------------------------------


async def test_req_at_once_and_later(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic).rdy(1)
    publish(broker, topic, b"a", b"b")
    frame = reader.next(b"a")
    reader.say("REQ", frame, 0)
    frame = reader.next(b"a", attempts=2)
    start = time.monotonic()
    reader.say("REQ", frame, 1500)
    other = reader.next(b"b")
    reader.say("FIN", frame)  # deferred: it is not in flight
    assert reader.peer.read_frame().payload.endswith(b"failed ID not in flight")
    assert stats(broker, topic)["channels"][0]["deferred_count"] == 1
    reader.say("FIN", other)
    reader.next(b"a", attempts=3)
    assert time.monotonic() - start >= 1.5
    [channel] = stats(broker, topic)["channels"]
    assert (channel["requeue_count"], channel["in_flight_count"], channel["depth"]) == (2, 1, 0)
    assert channel["message_count"] == 2
    reader.close()


async def test_timeout_and_touch(broker: Server, connect: Connect, uniq: str) -> None:
    """The time of each client counts, not that of the consumer."""
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic, msg_timeout=1000).rdy(1)
    publish(broker, topic, b"a")
    start = time.monotonic()
    frame = reader.next(b"a")
    for _ in range(3):
        await asyncio.sleep(0.5)
        reader.say("TOUCH", frame)
    frame = await asyncio.to_thread(reader.next, b"a", 2)
    touched = time.monotonic()
    assert 2.4 <= touched - start < 8
    frame = await asyncio.to_thread(reader.next, b"a", 3)
    assert 0.9 <= time.monotonic() - touched < 8
    reader.say("FIN", frame)
    assert (await consumer(client, uniq))["config"]["ack_wait"] == 60 * SECOND
    assert stats(broker, topic)["channels"][0]["timeout_count"] == 2
    reader.peer.command(f"TOUCH {1:016x}")
    assert reader.peer.read_frame().payload == (
        b"E_TOUCH_FAILED TOUCH 0000000000000001 failed ID not in flight"
    )
    reader.close()


async def test_touches_end_at_the_longest_time(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker({"nsq": {"msg_timeout": "1s", "max_msg_timeout": "1s"}})
    client = await connect(server)
    topic = await make(client, "s")
    reader = Reader(server, topic, msg_timeout=1000).rdy(1)
    publish(server, topic, b"a")
    start = time.monotonic()
    frame = reader.next(b"a")
    await asyncio.sleep(0.5)
    reader.say("TOUCH", frame)
    await asyncio.to_thread(reader.next, b"a", 2)
    assert time.monotonic() - start < 1.4
    reader.close()


async def test_fin_of_others_and_twice(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    one, two = Reader(broker, topic).rdy(1), Reader(broker, topic)
    publish(broker, topic, b"a")
    frame = one.next(b"a")
    two.say("FIN", frame)
    assert two.peer.read_frame().payload == (
        b"E_FIN_FAILED FIN 0000000000000001 failed client does not own message"
    )
    one.say("FIN", frame)
    one.say("FIN", frame)
    assert one.peer.read_frame().payload == (
        b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight"
    )
    one.close()
    two.close()


async def test_a_closed_client_gives_back(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    one = Reader(broker, topic).rdy(10)
    publish(broker, topic, b"a", b"b")
    one.next(b"a")
    one.next(b"b")
    two = Reader(broker, topic).rdy(10)
    two.barrier()
    one.close()
    assert {two.next(attempts=2).body, two.next(attempts=2).body} == {b"a", b"b"}
    two.close()


async def test_rdy_is_kept_and_shared(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    readers = [Reader(broker, topic).rdy(2) for _ in range(3)]
    for reader in readers:
        reader.barrier()
    publish(broker, topic, *[b"%d" % n for n in range(9)])
    got = [reader.next() for reader in readers for _ in range(2)]
    assert sorted(f.body for f in got) == [b"%d" % n for n in range(6)]
    for reader in readers:
        reader.barrier()
    readers[0].rdy(0).say("FIN", got[0])
    readers[0].barrier()
    readers[1].say("FIN", got[2])
    assert readers[1].next().body == b"6"
    readers[1].peer.command("CLS")
    readers[1].peer.expect_frame("response", b"CLOSE_WAIT")
    readers[1].say("FIN", got[3])
    readers[1].barrier()
    for reader in readers:
        reader.close()


async def test_a_slow_reader_stops_nobody(broker: Server, connect: Connect, uniq: str) -> None:
    """Messages that do not fit into the output of a client wait, or go to another one."""
    client = await connect(broker)
    topic = await make(client, uniq)
    slow = Reader(broker, topic).rdy(2500)
    body = bytes(500_000)
    with nsq_peer(broker.nsq) as peer:
        for _ in range(60):
            peer.command(f"PUB {topic}", body)
            peer.expect_frame("response", b"OK")
        quick = Reader(broker, topic).rdy(1)
        for _ in range(5):
            frame = quick.next()
            quick.say("FIN", frame)
        quick.close()
    for _ in range(40):
        slow.say("FIN", slow.next())
    slow.close()


async def test_sample_rate(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic, sample_rate=50).rdy(1000)
    publish(broker, topic, *[b"%d" % n for n in range(400)])
    await eventually(lambda: _has_pending(client, uniq, 0))
    [channel] = stats(broker, topic)["channels"]
    assert 100 < channel["in_flight_count"] < 300
    reader.close()


async def _has_pending(client: Client, name: str, count: int) -> bool:
    return bool((await consumer(client, name))["num_pending"] == count)


class Worker(threading.Thread):
    """An NSQ client that comes and goes, and finishes, requeues, touches or forgets messages."""

    def __init__(self, server: Server, topic: str, seed: int, enough: threading.Event) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.topic = topic
        self.random = random.Random(seed)
        self.enough = enough
        self.done: list[bytes] = []

    def run(self) -> None:
        while not self.enough.is_set():
            reader = Reader(self.server, self.topic, "work")
            reader.peer.deadline_s = 0.5
            reader.rdy(self.random.randint(1, 40))
            with contextlib.suppress(PeerError):  # there is nothing now
                for _ in range(self.random.randint(1, 400)):
                    self.handle(reader, reader.next())
                reader.settle()
            assert not reader.peer.closed
            reader.close()

    def handle(self, reader: Reader, frame: Frame) -> None:
        act = self.random.random()
        if 0.7 < act < 0.8:
            reader.say("TOUCH", frame)
        if act < 0.8:
            reader.say("FIN", frame)
            self.done.append(frame.body)
        elif act < 0.95:
            reader.say("REQ", frame, self.random.choice((0, 0, 50)))
        else:
            reader.rdy(self.random.randint(1, 40))  # and it keeps the message until it goes


async def test_many_clients_at_random(broker: Server, connect: Connect, uniq: str) -> None:
    """Beside a client that pulls, from one work queue: in the end each message is done once, and
    nothing is in flight."""
    client = await connect(broker)
    topic = await make(client, uniq, retention="workqueue")
    Reader(broker, topic, "work").close()
    pull = await client.jetstream().pull_subscribe_bind("work", uniq.upper())
    pick = random.Random(uniq)
    enough = threading.Event()
    workers = [Worker(broker, topic, pick.randrange(1 << 30), enough) for _ in range(6)]
    for worker in workers:
        worker.start()
    publish(broker, topic, *[b"%d" % n for n in range(3000)])
    done: list[bytes] = []
    end = time.monotonic() + 40
    while len(done) + sum(len(worker.done) for worker in workers) < 3000:
        assert time.monotonic() < end
        assert all(worker.is_alive() for worker in workers)
        try:
            found = await pull.fetch(pick.randint(1, 30), timeout=0.2)
        except (nats.errors.TimeoutError, TimeoutError):
            continue
        for message in found:
            if pick.random() < 0.8:
                await message.ack_sync()
                done.append(message.data)
            else:
                await message.nak(delay=pick.choice((0, 0.05)))
    enough.set()
    for worker in workers:
        worker.join(WAIT_S)
        done += worker.done
    assert sorted(done, key=int) == [b"%d" % n for n in range(3000)]
    info = await consumer(client, uniq, "work")
    assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
    assert (await state(client, uniq))["messages"] == 0
    [channel] = stats(broker, topic)["channels"]
    assert (channel["in_flight_count"], channel["depth"], channel["client_count"]) == (0, 0, 0)


# --- publishing ----------------------------------------------------------------------------------


async def test_mpub_and_http(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"MPUB {topic}", parts(b"1", b"2", b"3"))
        peer.command(f"DPUB {topic} 0", b"4")
        for _ in range(2):
            peer.expect_frame("response", b"OK")
    assert post(broker, "/pub", b"5", topic=topic).body == b"OK"
    assert post(broker, "/mpub", b"6\n7", topic=topic).body == b"OK"
    reader = Reader(broker, topic).rdy(10)
    assert [reader.next().body for _ in range(7)] == [b"%d" % n for n in range(1, 8)]
    assert stats(broker, topic)["message_count"] == 7
    assert stats(broker, topic)["message_bytes"] == 7
    reader.close()


async def test_what_the_stream_refuses(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    bounds = {"max_msg_size": 10, "max_msgs": 3, "discard": "new"}
    topic = await make(client, uniq, **bounds)
    sub = await client.subscribe(topic)
    await client.flush()
    assert refusal(broker, f"PUB {topic}", b"x" * 11) == (
        b"E_PUB_FAILED PUB failed message size exceeds maximum allowed"
    )
    assert refusal(broker, f"MPUB {topic}", parts(b"ok", b"x" * 11)) == (
        b"E_MPUB_FAILED MPUB failed message size exceeds maximum allowed"
    )
    publish(broker, topic, b"1")
    assert refusal(broker, f"MPUB {topic}", parts(b"2", b"3", b"4")) == (
        b"E_MPUB_FAILED MPUB failed maximum messages exceeded"
    )
    assert (await state(client, uniq))["messages"] == 1  # all of it or nothing
    publish(broker, topic, b"2", b"3")
    assert (
        refusal(broker, f"PUB {topic}", b"4")
        == b"E_PUB_FAILED PUB failed maximum messages exceeded"
    )
    answer = post(broker, "/pub", b"4", topic=topic)
    assert (answer.status, answer.json) == (
        409, {"message": "REFUSED_BY_STREAM: maximum messages exceeded"}
    )  # fmt: skip
    assert post(broker, "/mpub", b"4\n5", topic=topic).status == 409
    assert [(await sub.next_msg(WAIT_S)).data for _ in range(3)] == [b"1", b"2", b"3"]
    await client.flush()
    assert sub.pending_msgs == 0  # nothing of what was refused


async def test_sealed(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    config = stream_config(uniq, topic, sealed=True)
    found = await update(client, uniq, **{k: v for k, v in config.items() if k != "name"})
    assert "error" not in found
    assert refusal(broker, f"PUB {topic}", b"x") == (
        b"E_PUB_FAILED PUB failed invalid operation on sealed stream"
    )


async def test_deferred_messages_are_refused(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    assert refusal(broker, f"DPUB {topic} 100", b"x") == (
        b"E_DPUB_FAILED DPUB failed the topic is a stream, whose messages cannot be deferred"
    )
    answer = post(broker, "/pub", b"x", topic=topic, defer=100)
    assert (answer.status, answer.json) == (400, {"message": "STREAM_CANNOT_DEFER"})
    assert (await state(client, uniq))["messages"] == 0


async def test_answers_stay_in_order(broker: Server, connect: Connect, uniq: str) -> None:
    """Publishes to a stream, to a topic and refused ones on one connection."""
    client = await connect(broker)
    topic = await make(client, uniq, max_msg_size=3)
    with nsq_peer(broker.nsq) as peer:
        for _ in range(50):
            peer.command(f"PUB {topic}", b"s")
            peer.command(f"PUB {uniq}-log", b"a message of the log")
        peer.command(f"PUB {topic}", b"too long")
        for _ in range(100):
            peer.expect_frame("response", b"OK")
        assert peer.read_frame().payload.startswith(b"E_PUB_FAILED")
        peer.expect_close()
    assert (await state(client, uniq))["messages"] == 50
    assert stats(broker, f"{uniq}-log")["message_count"] == 50


# --- retention, deletes, purges ------------------------------------------------------------------


async def test_work_queue(broker: Server, connect: Connect, uniq: str) -> None:
    """A FIN deletes the message; there is one channel."""
    client = await connect(broker)
    topic = await make(client, uniq, retention="workqueue")
    publish(broker, topic, b"a", b"b")
    reader = Reader(broker, topic).rdy(1)
    reader.say("FIN", reader.next(b"a"))
    reader.next(b"b")
    assert (await state(client, uniq))["messages"] == 1
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"SUB {topic} other")
        assert peer.read_frame().payload == (
            b"E_SUB_FAILED SUB failed filtered consumer not unique on workqueue stream"
        )
        peer.expect_close()
    reader.close()


async def test_interest(broker: Server, connect: Connect, uniq: str) -> None:
    """A message goes when all channels have finished it."""
    client = await connect(broker)
    topic = await make(client, uniq, retention="interest")
    publish(broker, topic, b"nobody reads it")
    assert (await state(client, uniq))["messages"] == 0
    one, two = Reader(broker, topic, "one").rdy(1), Reader(broker, topic, "two").rdy(1)
    publish(broker, topic, b"a")
    one.say("FIN", one.next(b"a"))
    one.barrier()
    assert (await state(client, uniq))["messages"] == 1
    two.say("FIN", two.next(b"a"))
    two.barrier()
    assert (await state(client, uniq))["messages"] == 0
    one.close()
    two.close()


async def test_deleted_in_flight(broker: Server, connect: Connect, uniq: str) -> None:
    """Messages that are deleted or purged leave their clients room for others."""
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic).rdy(2)
    publish(broker, topic, *[b"%d" % n for n in range(1, 7)])
    first, second = reader.next(b"1"), reader.next(b"2")
    await ask(client, f"STREAM.MSG.DELETE.{uniq.upper()}", {"seq": 1})
    reader.next(b"3")
    reader.say("FIN", first)
    assert reader.peer.read_frame().payload.endswith(b"failed ID not in flight")
    await ask(client, f"STREAM.PURGE.{uniq.upper()}", {"seq": 6})
    reader.next(b"6")
    reader.say("TOUCH", second)
    assert reader.peer.read_frame().payload.endswith(b"failed ID not in flight")
    publish(broker, topic, b"7")
    reader.next(b"7")
    assert stats(broker, topic)["channels"][0]["in_flight_count"] == 2
    reader.close()


async def test_max_deliver(broker: Server, connect: Connect, uniq: str) -> None:
    """A limit of deliveries that a client of JetStream has set holds for NSQ clients."""
    client = await connect(broker)
    topic = await make(client, uniq)
    config = {
        "durable_name": "ch", "ack_policy": "explicit", "filter_subject": topic, "max_deliver": 2
    }  # fmt: skip
    body = {"stream_name": uniq.upper(), "config": config}
    await ask(client, f"CONSUMER.CREATE.{uniq.upper()}.ch.{topic}", body)
    advised = await client.subscribe(
        f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{uniq.upper()}.ch"
    )
    await client.flush()
    reader = Reader(broker, topic).rdy(1)
    publish(broker, topic, b"a", b"b")
    reader.say("REQ", reader.next(b"a"), 0)
    reader.say("REQ", reader.next(b"a", attempts=2), 0)
    reader.next(b"b")
    assert json.loads((await advised.next_msg(WAIT_S)).data)["stream_seq"] == 1
    reader.close()


async def test_reset_and_pause(broker: Server, connect: Connect, uniq: str) -> None:
    """What clients of JetStream do to the consumer, its NSQ clients notice."""
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic).rdy(1)
    publish(broker, topic, b"a")
    frame = reader.next(b"a")
    await ask(client, f"CONSUMER.RESET.{uniq.upper()}.ch", {"seq": 1})
    reader.next(b"a")
    reader.say("FIN", frame)
    until = "2100-01-01T00:00:00Z"
    await ask(client, f"CONSUMER.PAUSE.{uniq.upper()}.ch", {"pause_until": until})
    publish(broker, topic, b"b")
    assert stats(broker, topic)["channels"][0]["paused"]
    reader.barrier()
    assert post(broker, "/channel/unpause", topic=topic, channel="ch").status == 200
    frame = reader.next(b"b")
    assert post(broker, "/channel/pause", topic=topic, channel="ch").status == 200
    reader.say("REQ", frame, 0)
    reader.barrier()
    assert (await consumer(client, uniq))["paused"]
    reader.close()


# --- ephemeral channels --------------------------------------------------------------------------


async def test_an_ephemeral_channel_goes_with_its_last_client(
    broker: Server, connect: Connect, uniq: str
) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    one, two = Reader(broker, topic, "e#ephemeral"), Reader(broker, topic, "e#ephemeral").rdy(1)
    publish(broker, topic, b"a")
    two.next(b"a")
    two.close()
    one.rdy(1).next(b"a", attempts=2)
    one.close()
    gone = f"CONSUMER.INFO.{uniq.upper()}.e#ephemeral"

    async def is_gone() -> bool:
        return (await ask(client, gone)).get("error", {}).get("err_code") == 10014

    await eventually(is_gone, 3.0)  # before the server looks for unused consumers
    assert stats(broker, topic)["channels"] == []


# --- life of topic and channel -------------------------------------------------------------------


async def test_deleting_a_channel_disconnects_its_clients(
    broker: Server, connect: Connect, uniq: str
) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    for delete in ("http", "api"):
        reader = Reader(broker, topic).rdy(1)
        if delete == "http":
            assert post(broker, "/channel/delete", topic=topic, channel="ch").status == 200
        else:
            await ask(client, f"CONSUMER.DELETE.{uniq.upper()}.ch")
        reader.peer.expect_close()
        found = await consumer(client, uniq)
        assert found["error"]["err_code"] == 10014
    answer = post(broker, "/channel/delete", topic=topic, channel="ch")
    assert (answer.status, answer.json) == (404, {"message": "CHANNEL_NOT_FOUND"})


async def test_a_consumer_that_becomes_no_channel(
    broker: Server, connect: Connect, uniq: str
) -> None:
    """Its NSQ clients are disconnected, and what they held is delivered again."""
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic).rdy(1)
    publish(broker, topic, b"a")
    reader.next(b"a")
    config = (await consumer(client, uniq))["config"]
    config["filter_subject"] = f"{uniq}.*"
    body = {"stream_name": uniq.upper(), "config": config}
    assert "error" not in await ask(client, f"CONSUMER.CREATE.{uniq.upper()}.ch.{uniq}.*", body)
    reader.peer.expect_close()
    pull = await client.jetstream().pull_subscribe_bind("ch", uniq.upper())
    [message] = await pull.fetch(1, timeout=WAIT_S)
    assert (message.data, message.metadata.num_delivered) == (b"a", 2)
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"SUB {topic} ch")
        name = uniq.upper()
        text = f"E_SUB_FAILED SUB failed the consumer ch of the stream {name} is not a channel"
        assert peer.read_frame().payload == text.encode()


async def test_the_key_is_removed_and_set_again(
    broker: Server, connect: Connect, uniq: str
) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic).rdy(1)
    publish(broker, topic, b"a")
    reader.next(b"a")
    assert "error" not in await update(client, uniq, subjects=[f"{uniq}.>"])
    reader.peer.expect_close()
    own = Reader(broker, topic).rdy(1)  # a log of its own now
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"PUB {topic}", b"of the log")
        peer.expect_frame("response", b"OK")
        own.next(b"of the log")
        found = await update(client, uniq, subjects=[f"{uniq}.>"], metadata={KEY: topic})
        assert found["error"]["description"] == (
            f"{KEY}: the topic '{topic}' exists with messages of its own: delete it first"
        )
        assert post(broker, "/topic/delete", topic=topic).status == 200
        found = await update(client, uniq, subjects=[f"{uniq}.>"], metadata={KEY: topic})
        assert "error" not in found
        peer.command(f"PUB {topic}", b"of the stream")  # the same connection
        peer.expect_frame("response", b"OK")
    reader = Reader(broker, topic).rdy(3)
    assert reader.next().body == b"a"  # given back when its client was disconnected
    reader.next(b"of the log")  # NATS took it to the stream
    reader.next(b"of the stream")
    reader.close()


async def test_deleting_the_stream(broker: Server, connect: Connect, uniq: str) -> None:
    """Its clients are disconnected, and the name is free for a topic of NSQ."""
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic)
    with nsq_peer(broker.nsq) as peer:
        peer.command(f"PUB {topic}", b"a")
        peer.expect_frame("response", b"OK")
        assert (await ask(client, f"STREAM.DELETE.{uniq.upper()}"))["success"]
        reader.peer.expect_close()
        peer.command(f"PUB {topic}", b"b")
        peer.expect_frame("response", b"OK")
    own = Reader(broker, topic).rdy(2)
    own.next(b"b")
    assert post(broker, "/topic/empty", topic=topic).status == 200
    own.close()


async def test_what_cannot_be_a_topic(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    publish(broker, f"{uniq}b.log", b"x")
    cases = [
        ("not a name", {}, "'not a name' is not the name of a topic that can be a subject"),
        ("", {}, "'' is not the name of a topic that can be a subject"),
        ("a..b", {}, "'a..b' is not the name of a topic that can be a subject"),
        (
            f"{uniq}b.t#ephemeral",
            {},
            f"'{uniq}b.t#ephemeral' is not the name of a topic that can be a subject",
        ),
        (
            "_INBOX.t",
            {"subjects": ["_INBOX.t"]},
            "'_INBOX.t' is not the name of a topic that can be a subject",
        ),
        ("elsewhere", {}, "'elsewhere' is none of the subjects of the stream"),
        (
            f"{uniq}b.log",
            {},
            f"the topic '{uniq}b.log' exists with messages of its own: delete it first",
        ),
        (
            f"{uniq}b.t",
            {"subject_transform": {"src": f"{uniq}b.>", "dest": f"{uniq}c.>"}},
            "the stream has a subject transform",
        ),
    ]
    for value, more, text in cases:
        config = stream_config(f"{uniq}b", value, **more)
        found = await ask(client, f"STREAM.CREATE.{uniq.upper()}B", config)
        assert found["error"] == {"code": 500, "err_code": 10052, "description": f"{KEY}: {text}"}
    found = await update(client, uniq, subjects=["elsewhere.>"], metadata={KEY: topic})
    assert (
        found["error"]["description"] == f"{KEY}: '{topic}' is none of the subjects of the stream"
    )
    publish(broker, topic, b"still the stream")
    assert (await state(client, uniq))["messages"] == 1


async def test_a_stream_of_another_account(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """NSQ belongs to the global account."""
    conf = tmp_path / "nats.conf"
    conf.write_text("accounts { A { jetstream: enabled, users: [ { user: a, password: a } ] } }")
    server = start_broker({"nats": {"config_file": str(conf)}})
    client = await connect(server, user="a", password="a")
    found = await ask(client, "STREAM.CREATE.S", stream_config("s", "s.t"))
    assert found["error"]["description"] == f"{KEY}: NSQ clients belong to another account"
    publish(server, "s.t", b"x")


async def test_http_requests(broker: Server, connect: Connect, uniq: str) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    publish(broker, topic, b"a")
    assert stats(broker, topic)["depth"] == 1
    assert post(broker, "/topic/create", topic=topic).status == 200
    assert post(broker, "/channel/create", topic=topic, channel="ch").status == 200
    assert (await consumer(client, uniq))["num_pending"] == 1
    for path in ("/topic/delete", "/topic/empty", "/topic/pause", "/topic/unpause"):
        answer = post(broker, path, topic=topic)
        assert (answer.status, answer.json) == (409, {"message": "TOPIC_IS_A_STREAM"}), path
    answer = post(broker, "/channel/empty", topic=topic, channel="ch")
    assert (answer.status, answer.json) == (409, {"message": "TOPIC_IS_A_STREAM"})
    reader = Reader(broker, topic, user_agent="reader").rdy(1)
    reader.next(b"a")
    found = stats(broker, topic)
    [channel] = found["channels"]
    assert (found["depth"], channel["depth"], channel["in_flight_count"]) == (0, 0, 1)
    assert channel["client_count"] == 1
    assert channel["clients"][0]["user_agent"] == "reader"
    everything = request(broker.nsq_http, "GET", "/stats", format="json").json["topics"]
    assert topic in [each["topic_name"] for each in everything]
    text = request(broker.nsq_http, "GET", "/stats").body.decode()
    assert topic in text
    page = request(broker.monitor, "GET", "/metrics").body.decode()
    assert f'channel_in_flight_messages{{channel="ch",topic="{topic}"}} 1.0' in page
    reader.close()


async def test_switches_of_the_bridge(start_broker: StartBroker, connect: Connect) -> None:
    text = b"failed the topic is a stream, and [bridge] does not connect NSQ and NATS"
    server = start_broker({"bridge": {"nsq_to_nats": False}})
    topic = await make(await connect(server), "s")
    assert refusal(server, f"PUB {topic}", b"x") == b"E_PUB_FAILED PUB " + text
    assert post(server, "/pub", b"x", topic=topic).status == 403
    Reader(server, topic).close()
    server = start_broker({"bridge": {"nsq_to_nats": False, "nats_to_nsq": False}})
    found = await ask(await connect(server), "STREAM.CREATE.S", stream_config("s", "s.t"))
    assert found["error"]["description"] == f"{KEY}: [bridge] does not connect NSQ and NATS"
    server = start_broker({"bridge": {"nats_to_nsq": False}})
    topic = await make(await connect(server), "s")
    publish(server, topic, b"x")
    assert refusal(server, f"SUB {topic} ch", b"")[:60] == b"E_SUB_FAILED SUB " + text[:43]
    assert post(server, "/channel/create", topic=topic, channel="ch").status == 403


async def test_auth_holds_for_streams(start_broker: StartBroker, connect: Connect) -> None:
    """What AUTH allows for a topic, it allows for the stream."""
    with AuthServer(Reply(b"", 403)) as authd:
        authd.replies["writer"] = grant(row("s.t", (".*",), "publish"))
        server = start_broker({"nsq": {"auth_http_addresses": [str(authd.address)]}})
        topic = await make(await connect(server), "s")
        with nsq_peer(server.nsq, {}) as peer:
            peer.command(f"PUB {topic}", b"x")
            assert peer.read_frame().payload == b"E_AUTH_FIRST AUTH required before PUB"
        with nsq_peer(server.nsq, {}) as peer:
            peer.command("AUTH", b"writer")
            assert peer.read_frame().kind == "response"
            peer.command(f"PUB {topic}", b"x")
            peer.expect_frame("response", b"OK")
            peer.command(f"SUB {topic} ch")
            assert peer.read_frame().payload.startswith(b"E_UNAUTHORIZED AUTH failed for SUB")


async def test_other_protocols_leave_the_name_alone(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Nobody makes a log of that name."""
    server = start_broker({"stan": {"enabled": True}})
    topic = await make(await connect(server), "s")
    with StanClient(server, "c") as stan:
        assert stan.publish(topic, b"x") != ""
    answer = request(server.bulk, "POST", f"/bulk/v1/append/{topic}", block([b"x"]))
    assert answer.status == 409
    assert f"{topic} is a stream of JetStream: publish to it with a client" in answer.body.decode()
    publish(server, topic, b"of the stream")


async def test_nsqlookupd_learns_of_topic_and_channels(
    start_broker: StartBroker,
    connect: Connect,
    tmp_path: Path,
    closing: contextlib.ExitStack,
) -> None:
    lookup = make_lookup(tmp_path / "lookup", {}, original=False)
    closing.callback(lookup.close)
    lookup.start()
    http = lookup.http
    server = start_broker({"nsq": {"nsqlookupd_tcp_addresses": [str(lookup.tcp)]}})
    client = await connect(server)
    topic = await make(client, "s")
    Reader(server, topic, "one").close()

    async def knows(*channels: str) -> bool:
        answer = request(http, "GET", "/lookup", topic=topic)
        return answer.status == 200 and sorted(answer.json["channels"]) == list(channels)

    await eventually(lambda: knows("one"))
    server.restart()
    await eventually(lambda: knows("one"))
    Reader(server, topic, "two").close()
    await eventually(lambda: knows("one", "two"))
    await ask(await connect(server), "STREAM.DELETE.S")

    async def is_gone() -> bool:
        answer = request(http, "GET", "/lookup", topic=topic)
        return answer.status == 404 or not answer.json["producers"]

    await eventually(is_gone)


async def test_a_client_that_leaves_while_its_channel_is_made(
    broker: Server, connect: Connect, uniq: str
) -> None:
    client = await connect(broker)
    topic = await make(client, uniq)
    for _ in range(20):
        peer = nsq_peer(broker.nsq)
        peer.command(f"SUB {topic} e#ephemeral")
        peer.close()
    reader = Reader(broker, topic, "e#ephemeral").rdy(1)
    publish(broker, topic, b"a")
    reader.next(b"a")
    reader.close()


async def test_commands_wait_for_a_new_channel(broker: Server, connect: Connect, uniq: str) -> None:
    """All at once: the answers are in order."""
    client = await connect(broker)
    topic = await make(client, uniq)
    publish(broker, topic, b"a")
    with nsq_peer(broker.nsq) as peer:
        peer.send(f"SUB {topic} ch\nRDY 1\nNOP\nPUB {topic}\n".encode() + sized(b"b"))
        peer.expect_frame("response", b"OK")
        frames = [peer.read_frame() for _ in range(2)]
        assert {(f.kind, f.payload if f.kind == "response" else f.body) for f in frames} == {
            ("response", b"OK"),
            ("message", b"a"),
        }


# --- restarts ------------------------------------------------------------------------------------


async def test_a_restart(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    client = await connect(server)
    topic = await make(client, "s")
    reader = Reader(server, topic).rdy(3)
    publish(server, topic, b"done", b"held", b"deferred", b"fresh")
    done, _, deferred = reader.next(b"done"), reader.next(b"held"), reader.next(b"deferred")
    reader.rdy(0)
    reader.say("FIN", done)
    deferred_at = time.monotonic()
    reader.say("REQ", deferred, 1500)
    reader.barrier()
    await client.close()
    server.restart()
    reader.close()
    again = Reader(server, topic).rdy(5)
    found: dict[bytes, int] = {}
    while b"deferred" not in found or len(found) < 3:  # the others come first unless it is slow
        frame = again.next()
        found[frame.body] = frame.attempts
        assert frame.body != b"deferred" or time.monotonic() > deferred_at + 1.5
    assert found == {b"held": 2, b"fresh": 1, b"deferred": 2}
    again.barrier()
    publish(server, topic, b"more")
    again.next(b"more")
    again.close()
    assert refusal(server, f"DPUB {topic} 100", b"x").startswith(b"E_DPUB_FAILED")


async def test_a_kill(start_broker: StartBroker, connect: Connect) -> None:
    """What was in flight comes at once, long before its time is up; delays are kept."""
    server = start_broker()
    client = await connect(server)
    topic = await make(client, "s")
    reader = Reader(server, topic).rdy(2)
    publish(server, topic, b"held", b"deferred")
    reader.next(b"held")
    reader.say("REQ", reader.next(b"deferred"), 60_000)
    reader.barrier()
    await client.close()
    server.kill()
    reader.close()
    server.start()
    again = Reader(server, topic).rdy(2)
    again.next(b"held", attempts=2)
    again.barrier()
    [channel] = stats(server, topic)["channels"]
    assert (channel["in_flight_count"], channel["deferred_count"], channel["depth"]) == (1, 1, 0)
    again.close()


async def test_a_topic_that_was_made_while_jetstream_was_off(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """Both stay, the topic a log of its own, until it is deleted."""
    data = tmp_path / "data"
    server = start_broker({}, data)
    topic = await make(await connect(server), "s")
    publish(server, topic, b"of the stream")
    server.close()
    server = start_broker({"jetstream": {"enabled": False}}, data)
    publish(server, topic, b"of the log")
    server.close()
    server = start_broker({}, data)
    Reader(server, topic).rdy(2).next(b"of the log")
    client = await connect(server)
    assert (await state(client, "s"))["messages"] == 1
    assert "a stream does not stand for its topic" in server.log_since()
    assert post(server, "/topic/delete", topic=topic).status == 200
    found = await update(client, "s", subjects=["s.>"], metadata={KEY: topic, "more": "x"})
    assert "error" not in found
    Reader(server, topic).rdy(2).next(b"of the stream")


async def test_an_offline_stream_keeps_its_name(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = start_broker({}, data)
    topic = await make(await connect(server), "s")
    server.close()
    [path] = (data / "jetstream").rglob("stream.json")
    stored = unsealed(path.read_bytes())
    save(path, stored.replace(b'"_nats.req.level":"0"', b'"_nats.req.level":"99"'))
    server = start_broker({}, data)
    text = b"the stream of the topic is offline"
    assert refusal(server, f"PUB {topic}", b"x") == b"E_PUB_FAILED PUB failed " + text
    assert post(server, "/pub", b"x", topic=topic).json == {"message": "STREAM_IS_OFFLINE"}
    with nsq_peer(server.nsq) as peer:
        peer.command(f"SUB {topic} ch")
        assert peer.read_frame().payload == b"E_SUB_FAILED SUB failed " + text
    client = await connect(server)
    assert (await ask(client, "STREAM.DELETE.S"))["success"]
    publish(server, topic, b"x")


async def test_a_restored_stream(broker: Server, connect: Connect, uniq: str) -> None:
    """A snapshot brings the topic back, with its channels."""
    client = await connect(broker)
    topic = await make(client, uniq)
    reader = Reader(broker, topic).rdy(1)
    publish(broker, topic, b"a", b"b")
    first = reader.next(b"a")
    reader.rdy(0).say("FIN", first)
    reader.barrier()
    reader.close()
    saved = await backups.snapshot(client, uniq.upper())
    assert (await ask(client, f"STREAM.DELETE.{uniq.upper()}"))["success"]
    publish(broker, topic, b"of a log")
    answer = await ask(client, f"STREAM.RESTORE.{uniq.upper()}", {"config": saved.config})
    assert answer["error"]["description"].startswith(f"{KEY}: the topic '{topic}' exists")
    assert post(broker, "/topic/delete", topic=topic).status == 200
    assert "error" not in await backups.restore(client, saved, uniq.upper())
    reader = Reader(broker, topic).rdy(2)
    assert reader.next().body == b"b"
    reader.close()
