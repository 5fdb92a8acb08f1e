"""The start of a whole server: what readers hold is in force before anything else happens. Its end:
requests that come while the listener closes are refused."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from support.clients.http import Answer, request
from support.configuration import NATS_AND_BULK
from support.engine import Rig, finish_all, numbered
from support.services import readers_of, writes_of

from broker.base.durable import save
from broker.base.units import SECOND
from broker.bulk import bulk, errors
from broker.bulk.bulk import Bulk
from broker.bulk.write.service import Writes
from broker.config.load import load
from broker.engine.cursor.local import LocalConsumer
from broker.net import limits as net_limits
from broker.net.http.pages import Pages
from broker.runtime import vfs
from broker.server.server import Server

CALL_SYNC = 2  # of vfs.pxd
READER = b"""{"name": "r", "ttl_s": 60, "hold": true, "renewed_ns": 1,
 "positions": {"t": {"seq": 5, "incarnation": "%s"}}}"""


def held_log(folder: Path) -> Path:
    """A data folder with a log whose records are finished, but held by a reader; its path."""
    data = folder / "data"
    rig = Rig(data / "logs", segment_bytes=1000)
    log = rig.log()
    consumer = LocalConsumer(log.open_cursor("c"), 1 << 20)
    for number in range(100):
        rig.publish(log, numbered(1, number))
    save(data / "bulk" / "readers" / "r.json", READER % log.log_id.hex().encode())
    log.retention.retain_from(5)
    finish_all(consumer)
    rig.settle()
    rig.abandon()
    return data


async def test_the_housekeeping_finds_the_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = held_log(tmp_path)

    first = []
    start = Writes.start

    async def slow_start(self: Writes, engine: object) -> None:
        engine.maintain()  # type: ignore[attr-defined]
        first.append(engine.log("t").retention.readable_from)  # type: ignore[attr-defined]
        await start(self, engine)  # type: ignore[arg-type]

    monkeypatch.setattr(Writes, "start", slow_start)
    file = tmp_path / "twinwire.toml"
    file.write_text(NATS_AND_BULK.format(data=data))
    server = Server(load(file))
    await server.start()
    try:
        assert first == [server.engine.log("t").retention.readable_from]
        assert first[0] <= 5
    finally:
        await server.stop()


async def test_an_unreadable_reader_holds_everything_after_a_commit_too(tmp_path: Path) -> None:
    data = held_log(tmp_path)
    (data / "bulk" / "readers" / "r.json").write_text("{")
    file = tmp_path / "twinwire.toml"
    file.write_text(NATS_AND_BULK.format(data=data))
    server = Server(load(file))
    try:
        await server.start()
        log = server.engine.log("t")
        held_from = log.retention.retained_from
        assert held_from
        holds = writes_of(server).holds
        holds.hold(log, "a commit", held_from + 3)
        holds.hold(log, "a commit", None)
        assert log.retention.retained_from == held_from
    finally:
        await server.stop()


def unsynced(data: Path) -> None:
    """A log as an earlier process has left it that was killed."""
    rig = Rig(data / "logs")
    rig.publish(rig.log(), numbered(1, 1))
    rig.settle()
    rig.abandon()


async def test_what_was_found_is_on_the_disk_before_the_listener_opens(tmp_path: Path) -> None:
    """Else a reader could keep a place behind records that a power cut takes away."""
    data = tmp_path / "data"
    unsynced(data)
    (data / "bulk").mkdir()  # the API was in use
    file = tmp_path / "twinwire.toml"
    file.write_text(NATS_AND_BULK.format(data=data))
    server = Server(load(file))
    vfs.fail(CALL_SYNC, errno.EIO, times=1_000)
    try:
        await server.start()
        assert "bulk" not in server.ports
        assert "Input/output error" in str(server.health())
    finally:
        vfs.heal()
        await server.stop()


async def test_what_was_found_is_on_the_disk_before_the_first_client_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same if nothing of the API was in use: the client waits until the disk takes it."""
    failed = asyncio.Event()
    open_it = Bulk.open

    async def watched(self: Bulk) -> None:
        try:
            await open_it(self)
        except OSError:
            failed.set()
            raise

    monkeypatch.setattr(Bulk, "open", watched)
    monkeypatch.setattr(net_limits, "HTTP_LOAD_AGAIN", SECOND // 100)
    data = tmp_path / "data"
    unsynced(data)
    file = tmp_path / "twinwire.toml"
    file.write_text(NATS_AND_BULK.format(data=data))
    server = Server(load(file))
    vfs.fail(CALL_SYNC, errno.EIO, times=1_000)
    try:
        await server.start()
        reader, writer = await asyncio.open_connection(*server.ports["bulk"])
        writer.write(b"GET /bulk/v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = asyncio.create_task(reader.readline())
        await failed.wait()
        assert not answer.done()
        vfs.heal()
        assert await answer == b"HTTP/1.1 200 OK\r\n"
        writer.close()
    finally:
        vfs.heal()
        await server.stop()


async def test_an_identity_that_cannot_be_made_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the first client gets its answer when there is room again."""
    full, tried = asyncio.Event(), asyncio.Event()
    full.set()
    make_it = bulk.own_identity

    def watched(host: Server) -> Any:
        loop.call_soon_threadsafe(tried.set)
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make_it(host)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(bulk, "own_identity", watched)
    monkeypatch.setattr(net_limits, "HTTP_LOAD_AGAIN", SECOND // 100)
    file = tmp_path / "twinwire.toml"
    file.write_text(NATS_AND_BULK.format(data=tmp_path / "data"))
    server = Server(load(file))
    try:
        await server.start()
        reader, writer = await asyncio.open_connection(*server.ports["bulk"])
        writer.write(b"GET /bulk/v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(2):  # the second try begins after the first was reported
            tried.clear()
            await tried.wait()
        assert "No space left" in str(server.health())
        full.clear()
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        assert "No space left" not in str(server.health())
        writer.close()
    finally:
        await server.stop()


async def test_nothing_is_made_before_the_first_client(tmp_path: Path) -> None:
    """A broker without pipelines starts faster, and has no folder of theirs."""
    data = tmp_path / "data"
    file = tmp_path / "twinwire.toml"
    file.write_text(NATS_AND_BULK.format(data=data))
    server = Server(load(file))
    try:
        await server.start()
        assert not (data / "bulk").exists()
        names = {each.name for block in server.metrics() for each in block.families()}
        assert "twinwire_bulk_commits" in names
    finally:
        await server.stop()


async def test_holds_count_while_the_listener_is_off(tmp_path: Path) -> None:
    """An operator who switches it off for a while does not let go what an archive holds."""
    data = held_log(tmp_path)
    file = tmp_path / "twinwire.toml"
    on, off = '[bulk]\nlisten = "127.0.0.1:0"', '[bulk]\nlisten = ""'
    file.write_text(NATS_AND_BULK.format(data=data).replace(on, off))
    server = Server(load(file))
    try:
        await server.start()
        assert "bulk" not in server.ports
        log = server.engine.log("t")
        assert log.retention.retained_from == 5
        server.engine.maintain()
        assert log.retention.readable_from <= 5
    finally:
        await server.stop()


async def test_an_identity_that_does_not_read_stops_the_bulk_api_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    save(data / "bulk" / "readers" / "r.json", READER % b"0")
    (data / "bulk" / "broker.json").write_text("{")
    file = tmp_path / "twinwire.toml"
    file.write_text(NATS_AND_BULK.format(data=data))
    server = Server(load(file))
    try:
        await server.start()
        assert "nats" in server.ports
        assert "bulk" not in server.ports
        assert "bulk API" in str(server.health())
        readers = readers_of(server)
        assert list(readers.known) == ["r"]
        assert readers._expiring is None, "it cannot renew itself"
    finally:
        await server.stop()


async def test_requests_that_come_while_the_listener_closes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open connections may send more until it has closed; by then logs and threads may be gone."""
    file = tmp_path / "twinwire.toml"
    file.write_text(NATS_AND_BULK.format(data=tmp_path / "data"))
    server = Server(load(file))
    await server.start()
    address, close = server.ports["bulk"], Pages.close
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await asyncio.to_thread(request, address, "GET", "/bulk/v1/topics"))

    async def slow_close(self: Pages) -> None:
        await ask()
        await close(self)

    monkeypatch.setattr(Pages, "close", slow_close)
    await ask()
    await server.stop()
    assert [answer.status for answer in answers] == [200, errors.BULK_STOPPING.status]
    assert answers[1].json == {"error": errors.BULK_STOPPING.text}
