"""Origins that are reached by an API: of another server (here of this one, by its domain), where
its disk fails and deliveries are missing, and of other accounts."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.client import JetStreamContext
from support import Server
from support.configuration import NATS
from support.engine import SYNC, WRITE
from support.servers.leafs import on_uvloop

from broker.config.load import load
from broker.protocols.jetstream.service import JetStreamService
from broker.runtime import vfs
from broker.server.server import Server as InProcess

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours

CONFIG = NATS + '[bulk]\nlisten = ""\n[jetstream]\ndomain = "hub"\n'
WAIT_S = 30.0
POLL_S = 0.01


@asynccontextmanager
async def hub(folder: Path) -> AsyncIterator[tuple[InProcess, Client, JetStreamContext]]:
    """A server with a stream O in memory, and M in files, a mirror of it by the domain's API."""
    file = folder / "twinwire.toml"
    file.write_text(CONFIG.format(data=folder / "data"))
    server = InProcess(load(file))
    await server.start()
    host, port = server.ports["nats"]
    client = await nats.connect(f"nats://{host}:{port}")
    js = client.jetstream(timeout=WAIT_S)
    try:
        await js.add_stream(name="O", subjects=["o"], storage="memory")
        mirror = {"name": "O", "external": {"api": "$JS.hub.API"}}
        await ask(client, "STREAM.CREATE.M", {"name": "M", "mirror": mirror})
        yield server, client, js
    finally:
        vfs.heal()
        await client.close()
        await server.stop()


async def ask(client: Client, verb: str, body: object = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    answer = json.loads((await client.request(f"$JS.API.{verb}", data, timeout=WAIT_S)).data)
    assert "error" not in answer, answer
    return answer


async def publish(client: Client, js: JetStreamContext, count: int, size: int = 10) -> None:
    for number in range(count - 1):
        await client.publish("o", b"%d" % number + bytes(size))
    await js.publish("o", b"last")


async def copied(client: Client, js: JetStreamContext, name: str = "M") -> None:
    """Until a mirror has all messages of O, each as it is there."""
    last = (await js.stream_info("O")).state.last_seq
    newest = json.dumps({"seq": last}).encode()
    async with asyncio.timeout(WAIT_S):
        while True:
            subject = f"$JS.API.STREAM.MSG.GET.{name}"
            if b'"error"' not in (await client.request(subject, newest, timeout=WAIT_S)).data:
                break
            await asyncio.sleep(POLL_S)
    state = (await js.stream_info(name)).state
    assert state.messages == (await js.stream_info("O")).state.messages
    for seq in {1, 2, last // 2, last - 1, last}:
        wanted = (await ask(client, "STREAM.MSG.GET.O", {"seq": seq}))["message"]
        assert (await ask(client, f"STREAM.MSG.GET.{name}", {"seq": seq}))["message"] == wanted
    assert (await ask(client, f"STREAM.INFO.{name}"))["mirror"]["lag"] == 0


@on_uvloop
async def test_more_than_a_window(tmp_path: Path) -> None:
    """The origin waits for answers about flow, which come when messages are stored."""
    async with hub(tmp_path) as (_, client, js):
        await publish(client, js, 20_000, 1000)
        await copied(client, js)


@pytest.mark.parametrize("call", [SYNC, WRITE])
def test_the_disk_fails(tmp_path: Path, call: int) -> None:
    @on_uvloop
    async def run(tmp_path: Path) -> None:
        async with hub(tmp_path) as (_, client, js):
            await ask(client, "STREAM.CREATE.L", {"name": "L", "mirror": {"name": "O"}})
            await publish(client, js, 100)
            await copied(client, js)
            await copied(client, js, "L")
            vfs.fail(call, errno.EIO, 0, 10_000)
            await publish(client, js, 500)
            async with asyncio.timeout(WAIT_S):
                while "error" not in (await ask(client, "STREAM.INFO.M"))["mirror"]:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
            vfs.heal()
            await copied(client, js)
            await copied(client, js, "L")

    run(tmp_path)


async def receiver(server: InProcess) -> Any:
    """What receives for M, as soon as it does."""
    service = server.service(JetStreamService)
    assert service is not None
    assert service.jetstream is not None
    sourcing = service.jetstream.accounts["$G"].origins._by_stream["M"]
    async with asyncio.timeout(WAIT_S):
        while True:
            (remote,) = sourcing._remote.values()
            if remote._receiver is not None and not remote._receiver.ended:
                return remote._receiver
            await asyncio.sleep(POLL_S)


@pytest.mark.parametrize(
    "message",
    [
        # a delivery after one that did not come; the end of a consumer; a heartbeat that names a
        # delivery which did not come
        (b"$JS.ACK.O.c.1.500.999.1.0", b"", b"junk"),
        (b"$JS.ACK.d.h.O.c.1.500.999.1.0", b"", b"junk"),
        (b"", b"NATS/1.0 409 Consumer Deleted\r\n\r\n", b""),
        (b"", b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 900\r\n\r\n", b""),
    ],
)
def test_what_does_not_follow_is_not_copied(tmp_path: Path, message: Any) -> None:
    @on_uvloop
    async def run(tmp_path: Path) -> None:
        async with hub(tmp_path) as (server, client, js):
            await publish(client, js, 100)
            await copied(client, js)
            before = await receiver(server)
            reply, headers, body = message
            # as another server: a client may not use such a reply subject
            before.account.publish(before.subject, body, reply, headers)
            await publish(client, js, 100)
            async with asyncio.timeout(WAIT_S):
                while not before.ended:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
            await copied(client, js)
            assert await receiver(server) is not before

    run(tmp_path)


@on_uvloop
async def test_messages_that_are_gone_are_not_waited_for(tmp_path: Path) -> None:
    """The lag is what the other server says: with each message, and when it waits for more."""
    async with hub(tmp_path) as (server, client, js):
        await publish(client, js, 3)
        await copied(client, js)
        running = await receiver(server)
        place = b"$JS.ACK.O.C.1.4.%d.%d.14" % (running.delivered + 1, time.time_ns())
        assert running.account.publish(running.subject, b"14 more follow", place) == 1
        async with asyncio.timeout(WAIT_S):
            while (await js.stream_info("M")).state.last_seq < 4:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            while (await ask(client, "STREAM.INFO.M"))["mirror"]["lag"]:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)


# --- accounts ------------------------------------------------------------------------------------

ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [ { user: a, password: p } ]
      exports: [ { service: "$JS.API.CONSUMER.CREATE.>" }, { service: "$JS.FC.>" }
                 { stream: "deliver.>" } ] }
  B { jetstream: enabled, users: [ { user: b, password: p } ]
      imports: [ { service: { account: A, subject: "$JS.API.CONSUMER.CREATE.>" },
                   to: "JS.A.CONSUMER.CREATE.>" }
                 { stream: { account: A, subject: "deliver.>" } } ] }
  C { jetstream: enabled, users: [ { user: c, password: p } ] }
}
"""
EXTERNAL = {"api": "JS.A", "deliver": "deliver.b"}
Connect = Callable[[Server, str], Awaitable[Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    clients: list[Client] = []

    async def open_one(server: Server, user: str) -> Client:
        clients.append(await nats.connect(server.nats_url, user=user, password="p"))
        return clients[-1]

    yield open_one
    for client in clients:
        await client.close()


def configured(folder: Path, text: str) -> dict[str, Any]:
    file = folder / "nats.conf"
    file.write_text(text)
    return {"nats": {"config_file": str(file)}}


async def bodies(client: Client, stream: str, count: int) -> list[bytes]:
    """All of a stream, as soon as it has so many messages."""
    js = client.jetstream()
    async with asyncio.timeout(WAIT_S):
        while (await js.stream_info(stream)).state.messages < count:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    state = (await js.stream_info(stream)).state
    seqs = range(state.first_seq, state.last_seq + 1)
    return [(await js.get_msg(stream, seq)).data for seq in seqs]


async def test_streams_of_another_account(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    server = start_broker(configured(tmp_path, ACCOUNTS))
    a, b, c = [await connect(server, user) for user in "abc"]
    mirror = {"name": "O", "external": EXTERNAL}
    for client in (b, c):  # C imports nothing
        await ask(client, "STREAM.CREATE.M", {"name": "M", "mirror": mirror})
    # without the messages of A's export
    silent = {"name": "O", "external": {"api": "JS.A", "deliver": "other"}}
    await ask(b, "STREAM.CREATE.N", {"name": "N", "mirror": silent})
    await a.jetstream().add_stream(name="O", subjects=["o.*"])
    for number in range(6):
        await a.jetstream().publish(f"o.{number % 2}", b"%d" % number)
    source = {"name": "O", "filter_subject": "o.1", "external": EXTERNAL}
    await ask(b, "STREAM.CREATE.S", {"name": "S", "sources": [source]})
    assert await bodies(b, "M", 6) == [b"%d" % n for n in range(6)]
    assert await bodies(b, "S", 3) == [b"1", b"3", b"5"]

    # A does not export it any more, then again
    marks = server.log_marks()
    imported = '{ stream: { account: A, subject: "deliver.>" } }'
    without = ACCOUNTS.replace('{ stream: "deliver.>" }', "").replace(imported, "")
    configured(tmp_path, without)
    server.signal(signal.SIGHUP)
    while "Reloaded: accounts" not in server.log_since(marks):
        await b.flush()
    await a.jetstream().publish("o.1", b"6")
    await a.jetstream().publish("o.1", b"7")
    assert len(await bodies(b, "M", 6)) == 6
    marks = server.log_marks()
    configured(tmp_path, ACCOUNTS)
    server.signal(signal.SIGHUP)
    while "Reloaded: accounts" not in server.log_since(marks):
        await b.flush()
    assert (await bodies(b, "M", 8))[6:] == [b"6", b"7"]
    assert await bodies(b, "S", 5) == [b"1", b"3", b"5", b"6", b"7"]
    for client, name in ((b, "N"), (c, "M")):
        assert (await client.jetstream().stream_info(name)).state.messages == 0

    # the stream is deleted and created again: a mirror keeps what it has, and says so
    await a.jetstream().delete_stream("O")
    found = await ask(b, "STREAM.INFO.M")
    assert found["mirror"]["error"]["err_code"] == 10059
    assert found["state"]["messages"] == 8


async def test_a_work_queue_of_another_account(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    imported = '{ stream: { account: A, subject: "deliver.>" } }'
    acks = '{ service: { account: A, subject: "$JS.FC.>" } }'
    text = ACCOUNTS.replace(imported, f"{imported}, {acks}")
    server = start_broker(configured(tmp_path, text))
    a, b = [await connect(server, user) for user in "ab"]
    await a.jetstream().add_stream(name="O", subjects=["o.*"], retention="workqueue")
    for number in range(6):
        await a.jetstream().publish(f"o.{number % 2}", b"%d" % number)
    transform = {"src": "o.*", "dest": "moved.{{wildcard(1)}}"}
    source = {"name": "O", "subject_transforms": [transform], "external": EXTERNAL}
    await ask(b, "STREAM.CREATE.S", {"name": "S", "sources": [source]})
    assert await bodies(b, "S", 6) == [b"%d" % n for n in range(6)]
    assert (await b.jetstream().get_msg("S", 2)).subject == "moved.1"
    async with asyncio.timeout(WAIT_S):
        while (await a.jetstream().stream_info("O")).state.messages:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    server.kill()
    server.start()
    a, b = [await connect(server, user) for user in "ab"]
    await a.jetstream().publish("o.0", b"6")
    assert (await bodies(b, "S", 7))[6:] == [b"6"]


async def test_streams_store_what_their_account_imports(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    server = start_broker(configured(tmp_path, ACCOUNTS))
    a, b, c = [await connect(server, user) for user in "abc"]
    for client in (b, c):  # C imports nothing
        await client.jetstream().add_stream(name="S", subjects=["deliver.x.*"])
    await a.publish("deliver.x.1", b"0", headers={"N": "0"})
    await a.publish("deliver.y.1", b"another subject")
    assert await bodies(b, "S", 1) == [b"0"]
    assert (await b.jetstream().get_msg("S", 1)).headers == {"N": "0"}

    # an import that is taken away and comes again, and a stream with other subjects
    imported = '{ stream: { account: A, subject: "deliver.>" } }'
    for text in (ACCOUNTS.replace(imported, ""), ACCOUNTS):
        marks = server.log_marks()
        configured(tmp_path, text)
        server.signal(signal.SIGHUP)
        while "Reloaded: accounts" not in server.log_since(marks):
            await b.flush()
        await a.publish("deliver.x.1", b"1" if text == ACCOUNTS else b"nobody imports it")
        await a.flush()
    assert await bodies(b, "S", 2) == [b"0", b"1"]
    await b.jetstream().update_stream(name="S", subjects=["deliver.y.*"])
    await a.publish("deliver.x.1", b"not its subject any more")
    await a.publish("deliver.y.1", b"2")
    assert await bodies(b, "S", 3) == [b"0", b"1", b"2"]
    server.kill()
    server.start()
    a, b, c = [await connect(server, user) for user in "abc"]
    await a.publish("deliver.y.1", b"3")
    assert (await bodies(b, "S", 4))[3:] == [b"3"]
    await b.jetstream().delete_stream("S")
    await a.publish("deliver.y.1", b"no stream any more")
    await a.flush()
    assert (await c.jetstream().stream_info("S")).state.messages == 0


async def test_another_account_after_a_restart(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    server = start_broker(configured(tmp_path, ACCOUNTS))
    a, b = [await connect(server, user) for user in "ab"]
    await a.jetstream().add_stream(name="O", subjects=["o.*"])
    source = {"name": "O", "external": EXTERNAL}
    await ask(b, "STREAM.CREATE.S", {"name": "S", "sources": [source]})
    for number in range(3):
        await a.jetstream().publish("o.1", b"%d" % number)
    assert len(await bodies(b, "S", 3)) == 3
    server.kill()
    server.start()
    a, b = [await connect(server, user) for user in "ab"]
    await a.jetstream().publish("o.1", b"3")
    assert await bodies(b, "S", 4) == [b"0", b"1", b"2", b"3"]
