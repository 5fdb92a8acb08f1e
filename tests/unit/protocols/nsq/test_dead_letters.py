"""Dead letters, from outside: set by HTTP, moved by consumers, given back."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.fakes.nsq import OK, message_id, pub, shown
from support.live.nsq import Client, on_uvloop, opened

from broker.engine.config import StorageConfig, TopicConfig
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, settled
from broker.engine.names import is_name
from broker.protocols.nsq import dead_letters
from broker.protocols.nsq.dead_letters import FILE, default_target, origin_of
from broker.protocols.nsq.http.api import NsqApi
from broker.protocols.nsq.listener import NsqListener

PATH = "/v1/deadletters"


class Case:
    """The HTTP side."""

    def __init__(self, listener: NsqListener, http: aiohttp.ClientSession) -> None:
        self.listener, self.http = listener, http

    async def ask(self, method: str, path: str, status: int = 200) -> Any:
        async with self.http.request(method, PATH + path) as reply:
            assert reply.status == status, await reply.text()
            return await reply.json()

    async def fail(self, client: Client, seq: int, attempts: int) -> None:
        """One delivery that comes to nothing."""
        assert shown(await client.frame())[:2] == (seq, attempts)
        client.writer.write(b"REQ %s 0\n" % message_id(seq))

    async def consumer(self, channel: bytes, topic: bytes = b"t") -> Client:
        client = await Client.dial(self.listener)
        assert await client.ask(b"SUB %s %s\n" % (topic, channel)) == OK
        client.writer.write(b"RDY 10\n")
        return client


@asynccontextmanager
async def case(folder: Path, storage: StorageConfig | None = None) -> AsyncIterator[Case]:
    async with opened(folder) as listener:
        listener.dead_letters.begin((storage or StorageConfig()).for_topic)
        runner = web.AppRunner(NsqApi(listener, lambda: None).app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            async with aiohttp.ClientSession(f"http://{host}:{port}") as http:
                yield Case(listener, http)
        finally:
            await runner.cleanup()


@on_uvloop
async def test_there_and_back_to_one_channel(tmp_path: Path) -> None:
    async with case(tmp_path) as our:
        one, two = await our.consumer(b"c"), await our.consumer(b"other")
        page = await our.ask("POST", "/set?topic=t&channel=c&max_attempts=2")
        assert (page["max_attempts"], page["dead_letter_topic"]) == (2, "t.dead")
        publisher = await Client.dial(our.listener)
        assert await publisher.ask(pub(b"t", b"x")) == OK
        assert shown(await two.frame()) == (1, 1, b"x")
        two.writer.write(b"FIN %s\n" % message_id(1))
        await our.fail(one, 1, 1)
        await our.fail(one, 1, 2)
        late = await our.consumer(b"look", b"t.dead")
        assert shown(await late.frame()) == (1, 1, b"x")
        late.writer.write(b"REQ %s 0\nRDY 0\nCLS\n" % message_id(1))
        assert (await late.frame())[1] == b"CLOSE_WAIT"
        await our.ask("POST", "/requeue?topic=t.dead", 404)
        done = await our.ask("POST", "/requeue?topic=t.dead&channel=look")
        assert done == {"moved": 1, "kept": 0, "failed": "", "left": 0}
        assert shown(await one.frame()) == (2, 1, b"x")
        assert await publisher.ask(pub(b"t", b"y")) == OK
        assert shown(await two.frame()) == (3, 1, b"y")
        (page,) = (await our.ask("GET", "?topic=t&channel=c"))["channels"]
        assert (page["dead_letters"], page["leaving"], page["failing"]) == (1, 0, False)


@on_uvloop
async def test_back_to_the_topic_in_parts(tmp_path: Path) -> None:
    storage = StorageConfig(topic=(TopicConfig(">", max_attempts=1),))
    async with case(tmp_path, storage) as our:
        one = await our.consumer(b"c")
        publisher = await Client.dial(our.listener)
        for seq in range(1, 6):
            assert await publisher.ask(pub(b"t", b"%d" % seq)) == OK
            await our.fail(one, seq, 1)
            assert await one.ask(pub(b"mark", b"x")) == OK
        one.writer.write(b"CLS\n")
        assert (await one.frame())[1] == b"CLOSE_WAIT"
        other = our.listener.engine.log("t").open_cursor("other")  # type: ignore[union-attr]
        await our.ask("POST", "/requeue?topic=t.dead&to=nowhere", 400)
        await our.ask("POST", "/requeue?topic=t.dead&limit=-1", 400)
        done = await our.ask("POST", "/requeue?topic=t.dead&to=topic&limit=2")
        assert (done["moved"], done["left"]) == (2, 3)
        done = await our.ask("POST", "/requeue?topic=t.dead&to=topic")
        assert (done["moved"], done["left"]) == (3, 0)
        assert other.depth == 5


@on_uvloop
async def test_what_has_no_way_back_stays(tmp_path: Path) -> None:
    async with case(tmp_path) as our:
        one = await our.consumer(b"c")
        await our.ask("POST", "/set?topic=t&channel=c&max_attempts=1&dead_letter_topic=grave")
        publisher = await Client.dial(our.listener)
        assert await publisher.ask(pub(b"t", b"x")) == OK
        await our.fail(one, 1, 1)
        assert await publisher.ask(pub(b"grave", b"no dead letter")) == OK
        assert await one.ask(pub(b"mark", b"x")) == OK
        our.listener.engine.log("t").delete_cursor("c")  # type: ignore[union-attr]
        done = await our.ask("POST", "/requeue?topic=grave")
        assert (done["moved"], done["kept"], done["left"]) == (0, 2, 2)


@on_uvloop
async def test_settings_live_as_long_as_their_channel(tmp_path: Path) -> None:
    storage = StorageConfig(topic=(TopicConfig("t", max_attempts=7, dead_letter_topic="d"),))
    async with case(tmp_path, storage) as our:
        for channel in (b"c", b"gone", b"plain"):
            await our.consumer(channel)
        await our.ask("POST", "/set?topic=t&channel=c&max_attempts=3")
        await our.ask("POST", "/set?topic=t&channel=gone&max_attempts=4")
        our.listener.engine.log("t").delete_cursor("gone")  # type: ignore[union-attr]
        await our.consumer(b"gone")
    async with case(tmp_path, storage) as our:
        pages = (await our.ask("GET", ""))["channels"]
        found = {p["channel"]: (p["max_attempts"], p["dead_letter_topic"]) for p in pages}
        assert found == {"c": (3, "t.dead"), "gone": (7, "d"), "plain": (7, "d")}
        page = await our.ask("POST", "/unset?topic=t&channel=c")
        assert (page["max_attempts"], page["set_for_channel"]) == (7, False)
        page = await our.ask("POST", "/set?topic=t&channel=c&max_attempts=0")
        assert (page["max_attempts"], page["set_for_channel"]) == (0, True)
    (tmp_path / "t" / FILE).write_bytes(b"{")
    async with case(tmp_path, replace(storage, topic=())) as our:
        pages = (await our.ask("GET", ""))["channels"]
        assert [page["max_attempts"] for page in pages] == [0, 0, 0]


@on_uvloop
async def test_a_deleted_channel_takes_its_settings_along_for_good(tmp_path: Path) -> None:
    async with case(tmp_path) as our:
        await our.consumer(b"gone")
        await our.consumer(b"stays", b"u")
        await our.consumer(b"gone", b"u")
        for topic in "tu":
            await our.ask("POST", f"/set?topic={topic}&channel=gone&max_attempts=4")
            our.listener.engine.log(topic).delete_cursor("gone")  # type: ignore[union-attr]
    for _ in range(2):  # it is made anew, then found
        async with case(tmp_path) as our:
            for topic in (b"t", b"u"):
                await our.consumer(b"gone", topic)
            pages = (await our.ask("GET", "?channel=gone"))["channels"]
            assert [page["set_for_channel"] for page in pages] == [False, False]


@on_uvloop
async def test_settings_are_on_the_disk_when_they_are_answered(tmp_path: Path) -> None:
    async with case(tmp_path) as our:
        await our.consumer(b"c")
        synced: list[str] = []

        def failing(path: str) -> None:
            synced.append(path)
            raise OSError(errno.EIO, "Input/output error")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dead_letters, "sync_path", failing)
            await our.ask("POST", "/set?topic=t&channel=c&max_attempts=2", 503)
        assert synced == [str(tmp_path / "t")]
        (page,) = (await our.ask("GET", "?topic=t&channel=c"))["channels"]
        assert page["max_attempts"] == 2, "as after a restart: the file has it"


@on_uvloop
async def test_one_that_cannot_go_back_does_not_double_those_before_it(tmp_path: Path) -> None:
    storage = StorageConfig(topic=(TopicConfig(">", max_attempts=1, dead_letter_topic="grave"),))
    async with case(tmp_path, storage) as our:
        publisher = await Client.dial(our.listener)
        for topic in (b"a", b"b"):
            one = await our.consumer(b"c", topic)
            assert await publisher.ask(pub(topic, topic)) == OK
            await our.fail(one, 1, 1)
            assert await one.ask(pub(b"mark", b"x")) == OK
        our.listener.engine.delete_log("b")
        (tmp_path / "b").touch()  # it cannot be made again
        done = await our.ask("POST", "/requeue?topic=grave&to=topic")
        assert done == {"moved": 1, "kept": 0, "failed": "File exists", "left": 1}
        await our.ask("POST", "/requeue?topic=grave&to=topic", 503)
        assert our.listener.engine.logs["a"].next_seq == 3


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("channel=c&max_attempts=1", 400, "MISSING_ARG_TOPIC"),
        ("topic=no&channel=c&max_attempts=1", 404, "TOPIC_NOT_FOUND"),
        ("topic=t&max_attempts=1", 400, "MISSING_ARG_CHANNEL"),
        ("topic=t&channel=no&max_attempts=1", 404, "CHANNEL_NOT_FOUND"),
        ("topic=t&channel=c", 400, "INVALID_ARG_MAX_ATTEMPTS"),
        ("topic=t&channel=c&max_attempts=65536", 400, "INVALID_ARG_MAX_ATTEMPTS"),
        ("topic=t&channel=c&max_attempts=x", 400, "INVALID_ARG_MAX_ATTEMPTS"),
        ("topic=t&channel=c&max_attempts=1&dead_letter_topic=t", 400,
         "INVALID_ARG_DEAD_LETTER_TOPIC"),
        ("topic=t&channel=c&max_attempts=1&dead_letter_topic=a+b", 400,
         "INVALID_ARG_DEAD_LETTER_TOPIC"),
        ("topic=t&channel=c&max_attempts=1&dead_letter_topic=a%23ephemeral", 400,
         "INVALID_ARG_DEAD_LETTER_TOPIC"),
    ],
)  # fmt: skip
def test_what_set_refuses(tmp_path: Path, query: str, status: int, code: str) -> None:
    @on_uvloop
    async def check(folder: Path) -> None:
        async with case(folder) as our:
            await our.consumer(b"c")
            assert await our.ask("POST", "/set?" + query, status) == {"message": code}

    check(tmp_path)


@pytest.mark.parametrize("topic", ["t", "x" * 64, "x" * 63 + "y", "e#ephemeral"])
def test_default_targets(topic: str) -> None:
    target = default_target(topic)
    assert is_name(target.encode())
    assert target.endswith(".dead")


def test_default_targets_of_long_names_differ() -> None:
    assert default_target("x" * 64) != default_target("x" * 63 + "y")


@on_uvloop
async def test_headers_of_the_publisher_are_kept(tmp_path: Path) -> None:
    storage = StorageConfig(topic=(TopicConfig("t", max_attempts=1),))
    async with case(tmp_path, storage) as our:
        log = our.listener.engine.open_log("t")
        consumer = LocalConsumer(log.open_cursor("c"), 1)
        headers = b"NATS/1.0\r\nA: b\r\nTwinwire-Topic: z\r\n\r\n"
        await settled(log, append(log, b"x", headers=headers))
        assert await (await Client.dial(our.listener)).ask(pub(b"mark", b"x")) == OK
        assert consumer.requeue(1) == 0
        assert await (await Client.dial(our.listener)).ask(pub(b"mark", b"x")) == OK
        dead = our.listener.engine.open_log("t.dead")
        look = LocalConsumer(dead.open_cursor("look"), 1)
        look.heads = []
        assert await (await Client.dial(our.listener)).ask(pub(b"mark", b"x")) == OK
        ((_, _, head),) = look.heads
        assert head.startswith(b"NATS/1.0\r\nA: b\r\nTwinwire-Topic: t\r\nTwinwire-Channel: c\r\n")
        assert b"\r\nTwinwire-Attempts: 1\r\nTwinwire-Reason: requeue\r\n" in head
        assert head.endswith(b"\r\n\r\n")
        assert origin_of(head) == ("t", "c", b"NATS/1.0\r\nA: b\r\n\r\n")


def test_a_publisher_cannot_say_where_a_dead_letter_comes_from() -> None:
    forged = b"NATS/1.0\r\nX: a\nTwinwire-Topic: victim\nTwinwire-Channel: c\r\n"
    true = b"Twinwire-Topic: orders\r\nTwinwire-Channel: own\r\n\r\n"
    found = origin_of(forged + true)
    assert found is not None
    assert (found.topic, found.channel) == ("orders", "own")
