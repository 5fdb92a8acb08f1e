"""Consumers of JetStream over real connections: exact bytes, what survives a kill, who may what."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.errors import NotFoundError
from support import RawPeer

if TYPE_CHECKING:
    from conftest import StartBroker
    from support.fixtures import Connect

pytestmark = pytest.mark.only_ours

WAIT_S = 10.0
SECOND = 10**9


async def ask(client: Client, verb: str, body: Any = b"") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads((await client.request(f"$JS.API.{verb}", data, timeout=WAIT_S)).data)


async def make(client: Client, name: str, count: int = 0, **config: Any) -> None:
    """A stream S, `count` messages, and a consumer of it."""
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    for number in range(count):
        await js.publish(f"s.{number}", b"m%d" % number)
    await consumer(client, name, **config)


async def consumer(client: Client, name: str, **config: Any) -> Any:
    body = {"stream_name": "S", "config": {"name": name, **config}}
    found = await ask(client, f"CONSUMER.CREATE.S.{name}", body)
    assert "error" not in found, found
    return found


def test_a_stream_is_no_subscriber_of_a_push_consumer(start_broker: StartBroker) -> None:
    """Its messages wait for a client, although another stream stores the deliver subject."""

    async def run(url: str) -> None:
        client = await nats.connect(url)
        js = client.jetstream()
        await js.add_stream(name="OTHER", subjects=["other.*"])
        await make(client, "C", 2, deliver_subject="other.in")
        found = await ask(client, "CONSUMER.INFO.S.C")
        assert (found["delivered"]["stream_seq"], found["num_pending"]) == (0, 2)
        assert "push_bound" not in found
        sub = await client.subscribe("other.in")
        assert [(await sub.next_msg(WAIT_S)).data for _ in range(2)] == [b"m0", b"m1"]
        stored = await ask(client, "STREAM.INFO.OTHER")
        assert stored["state"]["messages"] == 2
        await client.close()

    asyncio.run(run(start_broker({}).nats_url))


def test_a_term_settles_all_before_it_if_acks_do(start_broker: StartBroker) -> None:
    async def run(url: str) -> None:
        client = await nats.connect(url)
        await make(client, "C", 4, ack_policy="all")
        inbox = await Inbox(client, "C").open()
        messages = await inbox.take(4)
        await client.request(messages[2].reply, b"+TERM", timeout=WAIT_S)
        found = await ask(client, "CONSUMER.INFO.S.C")
        assert (found["ack_floor"]["stream_seq"], found["num_ack_pending"]) == (3, 1)
        await client.close()

    asyncio.run(run(start_broker({}).nats_url))


class Inbox:
    """Pull requests to one consumer, and what arrives."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.subject = client.new_inbox()
        self.sub: Subscription

    async def open(self) -> Inbox:
        self.sub = await self.client.subscribe(self.subject)
        return self

    async def ask(self, **fields: Any) -> None:
        await self.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.S.{self.name}",
            json.dumps(fields).encode(),
            reply=self.subject,
        )

    async def next(self) -> Msg:
        return await self.sub.next_msg(WAIT_S)

    async def take(self, count: int) -> list[Msg]:
        await self.ask(batch=count, expires=5 * SECOND)
        return [await self.next() for _ in range(count)]


async def inbox(client: Client, name: str) -> Inbox:
    return await Inbox(client, name).open()


def status(message: Msg) -> str:
    headers = message.headers or {}
    rest = [f"{key}: {text}" for key, text in headers.items() if key.startswith("Nats-")]
    return ", ".join([f"{headers.get('Status')} {headers.get('Description', '')}".strip(), *rest])


# --- bytes ---------------------------------------------------------------------------------------


async def test_exact_bytes(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    client = await connect(server)
    await make(client, "C%d", ack_policy="explicit", durable_name="C%d")
    await client.jetstream().publish("s.a", b"body", headers={"H": "v"})
    peer = RawPeer(server.nats)
    try:
        peer.read_line()
        peer.send(b'CONNECT {"headers":true,"verbose":false}\r\nSUB in 7\r\n')
        peer.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C%d in 0\r\n\r\n")
        line = peer.read_line()
        verb, subject, sid, reply, head, total = line.split()
        assert (verb, subject, sid, head, total) == (b"HMSG", b"s.a", b"7", b"18", b"22")
        assert peer.read_exact(24) == b"NATS/1.0\r\nH: v\r\n\r\nbody\r\n"
        assert reply.startswith(b"$JS.ACK.S.C%d.1.1.1.")
        assert reply.endswith(b".0")
        peer.send(b"SUB ok 8\r\nPUB " + reply + b" ok 4\r\n+ACK\r\n")
        assert peer.read_line() == b"MSG ok 8 0\r\n"
        assert peer.read_line() == b"\r\n"
        peer.send(b'PUB $JS.API.CONSUMER.MSG.NEXT.S.C%d in 16\r\n{"no_wait":true}\r\n')
        assert peer.read_line() == b"HMSG in 7 28 28\r\n"
        assert peer.read_exact(30) == b"NATS/1.0 404 No Messages\r\n\r\n\r\n"
    finally:
        peer.close()


# --- what stays ----------------------------------------------------------------------------------


async def test_confirmed_acks_survive_a_kill(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    client = await connect(server)
    await make(client, "C", 6, ack_policy="explicit", durable_name="C", ack_wait=SECOND)
    messages = await (await inbox(client, "C")).take(5)
    for number in (0, 1, 3):
        await messages[number].ack_sync(timeout=WAIT_S)
    server.kill()
    server.start()
    client = await connect(server)
    info = await ask(client, "CONSUMER.INFO.S.C")
    assert info["delivered"] == {"consumer_seq": 5, "stream_seq": 5}
    assert info["ack_floor"] == {"consumer_seq": 2, "stream_seq": 2}
    assert (info["num_ack_pending"], info["num_pending"]) == (2, 1)
    again = await (await inbox(client, "C")).take(3)
    assert sorted(message.data for message in again) == [b"m2", b"m4", b"m5"]


async def test_which_consumers_survive(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    client = await connect(server)
    await make(client, "durable", 3, durable_name="durable", filter_subject="s.1")
    await consumer(client, "ephemeral", inactive_threshold=60 * SECOND)
    await consumer(client, "memory", durable_name="memory", mem_storage=True)
    await consumer(client, "deleted", durable_name="deleted")
    assert (await ask(client, "CONSUMER.DELETE.S.deleted"))["success"]
    until = "2099-01-01T00:00:00Z"
    assert (await ask(client, "CONSUMER.PAUSE.S.durable", {"pause_until": until}))["paused"]
    server.kill()
    server.start()
    client = await connect(server)
    found = await ask(client, "CONSUMER.LIST.S")
    assert [one["name"] for one in found["consumers"]] == ["durable", "ephemeral"]
    durable = found["consumers"][0]
    assert durable["config"]["filter_subject"] == "s.1"
    assert (durable["paused"], durable["num_pending"]) == (True, 1)
    assert durable["config"]["pause_until"] == until


async def test_the_start_of_a_consumer_survives(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Messages between its creation and a kill are delivered after it."""
    server = start_broker()
    client = await connect(server)
    await make(client, "C", 2, durable_name="C", deliver_policy="new")
    await client.jetstream().publish("s.x", b"after")
    server.kill()
    server.start()
    client = await connect(server)
    (message,) = await (await inbox(client, "C")).take(1)
    assert message.data == b"after"


# --- ends ----------------------------------------------------------------------------------------


async def test_requests_end_with_the_stream(start_broker: StartBroker, connect: Connect) -> None:
    client = await connect(start_broker())
    await make(client, "C")
    box = await inbox(client, "C")
    await box.ask(batch=3, expires=60 * SECOND)
    await client.flush()
    await ask(client, "STREAM.DELETE.S")
    assert status(await box.next()) == "409 Consumer Deleted"
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("$JS.API.CONSUMER.MSG.NEXT.S.C", b"", timeout=WAIT_S)


async def test_requests_end_with_the_server(start_broker: StartBroker, connect: Connect) -> None:
    server = start_broker()
    await make(await connect(server), "C")
    peer = RawPeer(server.nats)
    try:
        peer.read_line()
        body = b'{"batch":3,"expires":60000000000}'
        peer.send(b'CONNECT {"headers":true,"verbose":false}\r\nSUB in 7\r\n')
        peer.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C in %d\r\n%s\r\nPING\r\n" % (len(body), body))
        assert peer.read_line() == b"PONG\r\n"
        server.stop()
        head = peer.read_line()
        assert head.startswith(b"HMSG in 7 ")
        text = b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 3\r\n"
        assert peer.read_exact(len(text)) == text
    finally:
        peer.close()


async def test_an_ephemeral_consumer_ends_without_its_reader(
    start_broker: StartBroker, connect: Connect
) -> None:
    client = await connect(start_broker())
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    gone = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.*")
    reader = await client.subscribe("to")
    await consumer(client, "E", deliver_subject="to", inactive_threshold=SECOND // 2)
    await reader.unsubscribe()
    event = json.loads((await gone.next_msg(WAIT_S)).data)
    assert (event["consumer"], event["action"]) == ("E", "delete")
    with pytest.raises(NotFoundError):
        await js.consumer_info("S", "E")


# --- a reader that does not read -----------------------------------------------------------------


async def test_a_request_that_may_not_wait_waits_for_its_client_to_read(
    start_broker: StartBroker, connect: Connect
) -> None:
    """Longer than it would wait for an ack: nothing else is missing."""
    server = start_broker()
    client = await connect(server)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    count, body = 1000, b"x" * 20_000
    for _ in range(0, count, 100):
        await asyncio.gather(*(js.publish("s", body) for _ in range(100)))
    await consumer(client, "C", ack_policy="none")
    with RawPeer(server.nats, receive_buffer=1 << 16, skips_pings=True) as peer:
        peer.read_line()
        request = b'{"batch":%d,"no_wait":true}' % count
        peer.send(b'CONNECT {"verbose":false}\r\nSUB to 7\r\n')
        peer.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.S.C to %d\r\n%s\r\n" % (len(request), request))
        rested = time.monotonic()
        delivered = 0
        while time.monotonic() < rested + 1.5:
            info = await ask(client, "CONSUMER.INFO.S.C")
            if info["delivered"]["stream_seq"] != delivered:
                delivered, rested = info["delivered"]["stream_seq"], time.monotonic()
        assert 0 < delivered < count
        for number in range(count):
            line = peer.read_line().split()
            assert (line[0], number) == (b"MSG", number)
            peer.read_exact(int(line[-1]) + 2)


async def test_a_slow_reader_gets_everything(start_broker: StartBroker, connect: Connect) -> None:
    """Its messages wait in the stream, not in its connection, and it is not disconnected."""
    server = start_broker()
    client = await connect(server)
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    count, body = 1500, b"x" * 20_000
    for start in range(0, count, 100):
        await asyncio.gather(*(js.publish("s.a", body) for _ in range(start, start + 100)))
    peer = RawPeer(server.nats, receive_buffer=1 << 16)
    try:
        peer.read_line()
        peer.send(b'CONNECT {"verbose":false}\r\nSUB to 7\r\nPING\r\n')
        assert peer.read_line() == b"PONG\r\n"
        await consumer(client, "C", deliver_subject="to", ack_policy="none")
        delivered = 0
        while True:  # until the server rests
            info = await ask(client, "CONSUMER.INFO.S.C")
            if info["delivered"]["stream_seq"] == delivered > 0:
                break
            delivered = info["delivered"]["stream_seq"]
        assert delivered < count
        for number in range(count):
            line = peer.read_line()
            assert line.split()[3].split(b".")[5] == b"%d" % (number + 1)
            peer.read_exact(len(body) + 2)
    finally:
        peer.close()


# --- rights --------------------------------------------------------------------------------------


async def test_answers_go_where_the_client_may_publish_or_listen(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(
        "authorization { users: [ {user: all, password: p}, {user: few, password: p, permissions:"
        ' {publish: ["$JS.API.>", "$JS.ACK.>"], subscribe: ["_INBOX.>", "mine.>"]}} ] }\n'
    )
    server = start_broker({"nats": {"config_file": str(path)}})
    client = await connect(server, user="all", password="p")
    await make(client, "C", 2, ack_policy="explicit", durable_name="C")
    secret = await client.subscribe("secret")
    mine = await client.subscribe("mine.a")
    await client.flush()
    few = await connect(server, user="few", password="p")
    subject = "$JS.API.CONSUMER.MSG.NEXT.S.C"
    await few.publish(subject, b"", reply="secret")
    await few.publish(subject, b"", reply="mine.a")
    assert (await mine.next_msg(WAIT_S)).data == b"m0"
    (message,) = await (await inbox(few, "C")).take(1)
    await few.publish(message.reply, b"+ACK", reply="secret")
    await message.ack_sync(timeout=WAIT_S)
    assert secret.pending_msgs == 0


ACCOUNTS = """
jetstream {{ store_dir: "{folder}" }}
accounts {{
  A: {{ jetstream: enabled, users: [{{user: a, password: p}}], exports: [
    {{service: "$JS.API.>", response_type: stream}}, {{service: "$JS.ACK.>"}},
    {{stream: "deliver.>"}} ] }}
  B: {{ users: [{{user: b, password: p}}], imports: [
    {{service: {{account: A, subject: "$JS.API.>"}}, to: "JS.A.API.>"}},
    {{service: {{account: A, subject: "$JS.ACK.>"}}}},
    {{stream: {{account: A, subject: "deliver.>"}}}} ] }}
}}
"""


async def test_another_account_reads_a_stream(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """It gets messages with the subjects that they were stored under, and acks them."""
    path = tmp_path / "nats.conf"
    path.write_text(ACCOUNTS.format(folder=tmp_path / "store"))
    server = start_broker({"nats": {"config_file": str(path)}})
    owner = await connect(server, user="a", password="p")
    await make(owner, "C", 3, durable_name="C", ack_policy="explicit")
    other = await connect(server, user="b", password="p")
    subject = other.new_inbox()
    sub = await other.subscribe(subject)
    body = b'{"batch":3,"expires":5000000000}'
    await other.publish("JS.A.API.CONSUMER.MSG.NEXT.S.C", body, reply=subject)
    for number in range(3):
        message = await sub.next_msg(WAIT_S)
        assert (message.subject, message.data) == (f"s.{number}", b"m%d" % number)
        assert (await other.request(message.reply, b"+ACK", timeout=WAIT_S)).data == b""
    assert (await ask(owner, "CONSUMER.INFO.S.C"))["num_ack_pending"] == 0
    pushed = await other.subscribe("deliver.x")
    await other.flush()
    await consumer(owner, "P", deliver_subject="deliver.x")
    message = await pushed.next_msg(WAIT_S)
    assert (message.subject, message.data) == ("s.0", b"m0")


# --- advisories ----------------------------------------------------------------------------------


async def test_advisories_and_metrics(start_broker: StartBroker, connect: Connect) -> None:
    client = await connect(start_broker())
    events = await client.subscribe("$JS.EVENT.>")
    js = client.jetstream()
    await js.add_stream(name="S", subjects=["s.*"])
    for number in range(4):
        await js.publish(f"s.{number}", b"x")
    await consumer(
        client,
        "C",
        durable_name="C",
        ack_policy="explicit",
        sample_freq="100",
        max_deliver=1,
        ack_wait=SECOND // 2,
    )
    one, two, three, _four = await (await inbox(client, "C")).take(4)
    await one.ack_sync(timeout=WAIT_S)
    await two.term()
    await three.nak()
    found: dict[str, Any] = {}
    while "CONSUMER.MAX_DELIVERIES.S.C 4" not in found:
        message = await events.next_msg(WAIT_S)
        event = json.loads(message.data)
        subject = message.subject.removeprefix("$JS.EVENT.ADVISORY.")
        if "stream_seq" in event:
            subject += f" {event['stream_seq']}"
        assert set(event) >= {"type", "id", "timestamp"} or subject == "API"
        found[subject] = {
            key: value for key, value in event.items() if key not in ("id", "timestamp")
        }
    kind = "io.nats.jetstream.advisory.v1"
    place = {"stream": "S", "consumer": "C"}
    assert found["CONSUMER.CREATED.S.C"] == {
        "type": f"{kind}.consumer_action",
        **place,
        "action": "create",
    }
    assert found["CONSUMER.MSG_TERMINATED.S.C 2"] == {
        "type": f"{kind}.terminated",
        **place,
        "consumer_seq": 2,
        "stream_seq": 2,
        "deliveries": 1,
    }
    assert found["CONSUMER.MSG_NAKED.S.C 3"]["type"] == f"{kind}.nak"
    for seq in (3, 4):
        assert found[f"CONSUMER.MAX_DELIVERIES.S.C {seq}"] == {
            "type": f"{kind}.max_deliver",
            **place,
            "stream_seq": seq,
            "deliveries": 1,
        }
    metric = found["$JS.EVENT.METRIC.CONSUMER.ACK.S.C 1"]
    assert metric.pop("ack_time") > 0
    assert metric == {
        "type": "io.nats.jetstream.metric.v1.consumer_ack",
        **place,
        "consumer_seq": 1,
        "stream_seq": 1,
        "deliveries": 1,
    }
