"""The listener with real sockets and files: acknowledgements, failed writes, drain."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fakes.nsq import ERROR, OK, mpub, pub, shown
from support.live.nsq import Client, on_uvloop, opened

from broker.runtime import vfs

CALL_OPEN, CALL_WRITE = 0, 1


@pytest.fixture(autouse=True)
def healed() -> Iterator[None]:
    yield
    vfs.heal()


def segment_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.seg")))


@on_uvloop
async def test_ok_means_that_the_record_is_in_the_file(tmp_path: Path) -> None:
    for sync in ("none", "always"):
        async with opened(tmp_path / sync, sync) as listener:
            client = await Client.dial(listener)
            assert await client.ask(pub(b"t", b"a body to look for")) == OK
            assert b"a body to look for" in segment_bytes(tmp_path / sync)
            assert await client.ask(mpub(b"t", b"one of two", b"two of two")) == OK
            assert b"two of two" in segment_bytes(tmp_path / sync)


@on_uvloop
async def test_messages_outlive_the_process(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        client = await Client.dial(listener)
        assert await client.ask(b"SUB t c\n") == OK
        assert await client.ask(mpub(b"t", b"a", b"b")) == OK
        assert shown(await client.ask(b"RDY 1\n"))[2] == b"a"
        assert shown(await client.ask(b"FIN 0000000000000001\n"))[2] == b"b"
    async with opened(tmp_path) as listener:
        client = await Client.dial(listener)
        assert await client.ask(b"SUB t c\n") == OK
        assert shown(await client.ask(b"RDY 5\n")) == (2, 2, b"b")


@on_uvloop
async def test_a_failed_write_fails_the_publish(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        before = await Client.dial(listener)
        assert await before.ask(pub(b"t", b"good")) == OK
        client = await Client.dial(listener)
        vfs.fail(CALL_WRITE, errno.ENOSPC)
        kind, text = await client.ask(pub(b"t", b"lost") * 3)
        reason = os.strerror(errno.ENOSPC).encode()
        assert (kind, text) == (ERROR, b"E_PUB_FAILED PUB failed " + reason)
        assert await client.reader.read() == b""
        assert await before.ask(mpub(b"t", b"after", b"wards")) == OK
        assert await before.ask(b"SUB t c\n") == OK
        assert shown(await before.ask(b"RDY 9\n"))[2] == b"good"
        assert [shown(await before.frame())[2] for _ in range(2)] == [b"after", b"wards"]


@on_uvloop
async def test_a_topic_that_cannot_be_made(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        client = await Client.dial(listener)
        vfs.fail(CALL_OPEN, errno.EMFILE)
        kind, text = await client.ask(pub(b"t", b"a"))
        assert kind == ERROR
        assert text.startswith(b"E_PUB_FAILED PUB failed ")
        other = await Client.dial(listener)
        assert await other.ask(pub(b"t", b"a")) == OK


@on_uvloop
async def test_drain_answers_first(tmp_path: Path) -> None:
    async with opened(tmp_path, "always") as listener:
        client = await Client.dial(listener)
        # no more than the server takes at once: with bytes that it has not read the connection is
        # reset, which may take answers with it
        client.writer.write(pub(b"t", b"x" * 100) * 500)
        assert await client.frame() == OK
        await listener.drain()
        rest = await client.reader.read()
        oks, left = divmod(len(rest), 10)
        assert left == 0
        assert oks + 1 == listener.engine.log("t").message_count
        assert (listener.connections, listener.total_connections) == (0, 1)


@on_uvloop
async def test_a_half_closed_client_gets_its_answers(tmp_path: Path) -> None:
    async with opened(tmp_path, "always") as listener:
        client = await Client.dial(listener)
        client.writer.write(pub(b"t", b"x") * 50)
        client.writer.write_eof()
        assert len(await client.reader.read()) == 500


@on_uvloop
async def test_many_publishers_and_consumers_lose_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:

        async def publish(number: int) -> None:
            client = await Client.dial(listener)
            for start in range(0, 1000, 50):
                client.writer.write(
                    b"".join(pub(b"t", b"%d.%d" % (number, start + i)) for i in range(50))
                )
                for _ in range(50):
                    assert await client.frame() == OK

        async def consume(seen: set[bytes], done: asyncio.Event) -> None:
            client = await Client.dial(listener)
            assert await client.ask(b"SUB t c\n") == OK
            client.writer.write(b"RDY 100\n")
            while True:
                kind, payload = await client.frame()
                assert kind == 2
                assert payload[26:] not in seen
                seen.add(payload[26:])
                client.writer.write(b"FIN %s\n" % payload[10:26])
                if len(seen) == 3000:
                    done.set()

        seen: set[bytes] = set()
        done = asyncio.Event()
        consumers = [asyncio.create_task(consume(seen, done)) for _ in range(3)]
        await asyncio.gather(*map(publish, range(3)))
        finished = asyncio.create_task(done.wait())
        await asyncio.wait([finished, *consumers], return_when=asyncio.FIRST_COMPLETED)
        assert len(seen) == 3000
        for task in consumers:
            task.cancel()
