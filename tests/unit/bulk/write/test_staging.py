"""Staged blocks and commits on an engine of their own: limits, expiry, faults, interleavings."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.bulk.rig import Named, refused, stands
from support.clients.upload import block
from support.engine import RENAME, SYNC, WRITE

from broker.bulk import limits
from broker.bulk.write import staging as staging_module
from broker.bulk.write.intents import VERSION, load_intents
from broker.bulk.write.staging import remove_folder
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, publish
from broker.runtime import vfs

ROWS = [b"%d" % number for number in range(50)]
SIZE = len(block(ROWS))


@pytest.mark.parametrize(
    "bounds",
    [
        {"writer_bytes_max": 2 * SIZE},
        {"bytes_max": 2 * SIZE},
        {"files_max": 2},
        {"disk_reserve": 1 << 60},
    ],
)
async def test_no_more_is_staged_than_may_be(start: Any, bounds: dict[str, int]) -> None:
    async with start(**bounds) as rig:
        if "disk_reserve" not in bounds:
            named = [await rig.stage(0, "t", part, ROWS) for part in (0, 1)]
        refusal = await refused(rig.stage(0, "t", 2, ROWS))
        assert refusal.status == 507
        if "disk_reserve" in bounds:
            return
        assert (await rig.commit(0, {"t": named}))["t"]["records"] == 100
        await asyncio.gather(*rig.writes.commits._tasks)
        assert (rig.writes.staging.bytes, rig.writes.staging.files) == (0, 0)
        await rig.stage(1, "t", 2, ROWS)  # there is room again


async def test_what_nobody_commits_expires(start: Any) -> None:
    async with start() as rig:
        await rig.stage(0, "t", 0, ROWS)
        await rig.writes.staging.expire(time.time_ns())
        assert rig.writes.staging.bytes == SIZE
        later = time.time_ns() + limits.STAGED_TTL + 1
        await rig.writes.staging.expire(later)
        assert (rig.writes.staging.bytes, rig.writes.staging.files) == (0, 0)
        assert list(rig.folder.rglob("*.blk")) == []
        await rig.publish(0, "t", ROWS)
        await rig.writes.commits.forget_old(later)
        assert (await rig.publish(0, "t", ROWS))["state"] == "already"
        await rig.writes.commits.forget_old(time.time_ns() + limits.WRITER_TTL + 1)
        assert not list((rig.folder / "staged").rglob("state.json"))
        assert (await rig.publish(0, "t", ROWS))["state"] == "committed"


class _Unwalked(dict[Any, Any]):
    """A mapping that may have 200,000 items: nobody may look at each for one request."""

    def items(self) -> Any:
        raise AssertionError("walked")

    __iter__ = values = keys = items


async def test_the_work_of_an_upload_does_not_grow_with_the_attempts(start: Any) -> None:
    async with start() as rig:
        await rig.stage(0, "t", 0, ROWS)
        batch = rig.writes.staging.batch("w", 0)
        batch.attempts = _Unwalked(batch.attempts)
        await rig.stage(0, "t", 1, ROWS)
        vfs.fail(WRITE, errno.ENOSPC)
        await refused(rig.stage(0, "t", 2, ROWS))
        vfs.heal()
        assert len(batch.attempts) == rig.writes.staging.files == 2


async def test_files_of_a_commit_are_named_on_the_threads(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 names take a second, in which the loop would serve nobody."""
    async with start() as rig:
        named = [await rig.stage(0, "t", part, ROWS) for part in range(3)]
        path, threads = staging_module.Batch.path, set[threading.Thread]()

        def noted(self: Any, key: Any) -> Path:
            threads.add(threading.current_thread())
            return path(self, key)

        monkeypatch.setattr(staging_module.Batch, "path", noted)
        assert (await rig.commit(0, {"t": named}))["t"]["records"] == 3 * len(ROWS)
        assert threads
        assert threading.main_thread() not in threads


async def test_a_state_that_does_not_read_stays_and_others_are_forgotten(start: Any) -> None:
    async with start() as rig:
        for name in ("a", "w", "z"):
            named = await rig.stage_for(name, 0, "t", ROWS)
            await rig.writes.commits.commit(name, 0, {"t": [named]})
        rig.writes.commits.writers.clear()
        (rig.folder / "staged" / "w" / "state.json").write_bytes(b"{")
        await rig.writes.commits.forget_old(time.time_ns() + limits.WRITER_TTL + 1)
        left = [path.parent.name for path in (rig.folder / "staged").glob("*/state.json")]
        assert left == ["w"]
        assert rig.writes.commits.stored_writers == 1


async def test_a_writer_that_comes_back_as_it_is_forgotten(start: Any) -> None:
    async with start() as rig:
        commits = rig.writes.commits
        await rig.publish(0, "t", ROWS)
        old_ns = time.time_ns() - limits.WRITER_TTL - 1
        os.utime(rig.folder / "staged" / "w" / "state.json", ns=(old_ns, old_ns))
        named = await rig.stage(1, "t", 0, ROWS)
        writer = await commits.writer("w")
        async with writer.lock:
            committing = asyncio.create_task(rig.commit(1, {"t": [named]}))
            await asyncio.sleep(0)
            forgetting = asyncio.create_task(commits.forget_old(time.time_ns()))
            while len(writer.lock._waiters or ()) < 2:  # noqa: ASYNC110 - it saw an old writer
                await asyncio.sleep(0)
        assert (await committing)["t"]["state"] == "committed"
        await forgetting
        assert (await rig.commit(1, {"t": [named]}))["t"]["state"] == "already"


async def test_a_commit_that_comes_as_its_blocks_expire(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds nothing; it must not begin with blocks that are about to go."""
    dropping, begun = threading.Event(), threading.Event()

    def slowly(folder: Path, trash: Path) -> None:
        dropping.set()
        begun.wait(0.5)
        remove_folder(folder, trash)
        gone.set()

    gone = threading.Event()
    monkeypatch.setattr(staging_module, "remove_folder", slowly)
    async with start() as rig:
        staging, sync = rig.writes.staging, rig.writes.staging.sync

        def synced(*args: Any) -> None:
            sync(*args)
            begun.set()
            gone.wait()

        monkeypatch.setattr(staging, "sync", synced)
        named = await rig.stage(0, "t", 0, ROWS)
        expiring = asyncio.create_task(staging.expire(time.time_ns() + limits.STAGED_TTL + 1))
        await asyncio.to_thread(dropping.wait)
        assert (await refused(rig.commit(0, {"t": [named]}))).status == 409
        await expiring
        assert not load_intents(rig.folder / "staged")[0]
        assert (await rig.publish(0, "t", ROWS))["state"] == "committed"


async def test_what_is_staged_anew_while_others_expire_stays(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same epoch as what had expired and was dropped by somebody else meanwhile."""
    others = threading.Event()

    def slowly(folder: Path, trash: Path) -> None:
        if folder.name == "0":
            others.wait()
        remove_folder(folder, trash)

    monkeypatch.setattr(staging_module, "remove_folder", slowly)
    async with start() as rig:
        staging = rig.writes.staging
        for epoch in (0, 1):
            await rig.stage(epoch, "t", 0, [b"old"])
        expiring = asyncio.create_task(staging.expire(time.time_ns() + limits.STAGED_TTL + 1))
        await asyncio.sleep(0)
        await rig.writes.commits.drop("w", 1, str)
        named = await rig.stage(1, "t", 0, ROWS)
        others.set()
        await expiring
        assert (staging.bytes, staging.files) == (SIZE, 1)
        assert (await rig.commit(1, {"t": [named]}))["t"]["records"] == len(ROWS)
        await asyncio.gather(*rig.writes.commits._tasks)
        assert (staging.bytes, staging.files) == (0, 0), "it is counted no more either"


async def test_staged_blocks_outlast_a_restart_and_expire_after_it(start: Any) -> None:
    async with start() as rig:
        named = await rig.stage(0, "t", 0, ROWS)
        old = await rig.stage(1, "t", 0, ROWS)
        (path,) = (rig.folder / "staged/w/0").iterdir()
        with path.open("ab") as file:
            file.write(block(ROWS)[:-8])  # a block that was being written
        before = time.time() - 2 * 3600
        for path in [*(rig.folder / "staged/w/1").iterdir(), rig.folder / "staged/w/1"]:
            os.utime(path, (before, before))
    async with start() as rig:
        await rig.writes.staging.expire(time.time_ns())
        assert (await refused(rig.commit(1, {"t": [old]}))).status == 409
        assert (await rig.commit(0, {"t": [named]}))["t"]["records"] == 50


async def test_a_start_that_cannot_sync_the_name_of_the_folder(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged is there, and is committed once the name of its folder is on the disk."""
    async with start() as rig:
        named = await rig.stage(0, "t", 0, ROWS)
        folder, sync = rig.folder, os.fsync
    failing = True

    def fsync(fd: int) -> None:
        if failing and os.path.samestat(os.fstat(fd), folder.stat()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    async with start() as rig:
        assert (rig.writes.staging.files, len(rig.writes.staging.problems)) == (1, 1)
        assert (await refused(rig.commit(0, {"t": [named]}))).status == 507
        failing = False
        assert (await rig.commit(0, {"t": [named]}))["t"]["records"] == len(ROWS)


async def test_a_full_disk_while_staging(start: Any) -> None:
    async with start() as rig:
        rig.engine.open_log("live")
        vfs.fail(WRITE, errno.ENOSPC, partial=100)
        assert (await refused(rig.stage(0, "t", 0, ROWS))).status == 507
        assert rig.writes.staging.bytes == 0
        assert [path.stat().st_size for path in rig.folder.rglob("*.blk")] == [0]
        await publish(rig.engine.log("live"), [b"still goes"])
        assert (await rig.publish(0, "t", ROWS))["records"] == 50


@pytest.mark.parametrize("call", [WRITE, SYNC, RENAME])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_each_file_call_of_a_commit_fails(
    start: Any, monkeypatch: pytest.MonkeyPatch, call: int, error: int
) -> None:
    """Whatever fails, the commit that is sent again publishes each row once."""
    monkeypatch.setattr(limits, "COMMIT_TURN_BYTES", 300)
    async with start("always") as rig:
        for epoch in range(100):
            rows = [b"%d %d" % (epoch, number) for number in range(50)]
            named = await rig.stage(epoch, "t", 0, rows)
            vfs.fail(call, error, epoch)
            for _ in range(100):
                if await stands(rig, epoch, named):
                    break
            fired = not vfs.unfired(call)
            vfs.heal()
            expected = [b"%d %d" % (e, n) for e in range(epoch + 1) for n in range(50)]
            assert rig.rows("t") == expected
            if not fired:
                break
        assert 1 < epoch < 99


async def test_a_topic_deleted_in_a_commit(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMMIT_TURN_BYTES", 300)
    async with start() as rig:
        topics = {name: [await rig.stage(0, name, 0, ROWS)] for name in ("t", "u")}
        commit = asyncio.ensure_future(rig.commit(0, topics))
        while not load_intents(rig.folder / "staged")[0]:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        rig.engine.delete_log("t")
        rig.engine.open_log("t")
        found = await commit
        assert (found["t"]["state"], found["u"]["state"]) == ("deleted", "committed")
        assert (rig.rows("t"), rig.rows("u")) == ([], ROWS)
        assert (await rig.publish(0, "t", ROWS))["state"] == "already"
        assert (await rig.publish(1, "t", ROWS))["state"] == "committed"


async def test_blocks_that_do_not_read_any_more(start: Any) -> None:
    async with start() as rig:
        named = await rig.stage(0, "t", 0, ROWS)
        vfs.fail(SYNC, errno.EIO, 11)  # after the intent
        while (await refused(rig.commit(0, {"t": [named]}))).status != 503:
            pass
        assert load_intents(rig.folder / "staged")[0]
        (path,) = rig.folder.rglob("*.blk")
        path.write_bytes(bytes(named[2]))
        assert (await refused(rig.commit(0, {"t": [named]}))).status == 500
        assert (await refused(rig.commit(1, {"t": []}))).status == 500
        await rig.writes.commits.drop("w", 0, str)
        while rig.engine.logs["t"].last_error:
            rig.engine.maintain()
            await rig.engine.settle()
        assert (await rig.publish(1, "t", ROWS))["state"] == "committed"


async def test_an_intent_of_another_version_stops_its_writer(start: Any) -> None:
    async with start() as rig:
        await rig.publish(0, "t", ROWS)
    folder = rig.folder / "staged/.intents"
    intent = {"version": VERSION + 1, "writer": "x", "epoch": 1, "id": "", "topics": {}}
    (folder / "x.json").write_text(json.dumps(intent))
    async with start() as rig:
        problem = await refused(rig.writes.commits.commit("x", 1, {}))
        assert "version 2" in str(problem)
        await rig.publish(1, "t", ROWS)


async def test_writers_and_publishers_at_once(start: Any, monkeypatch: Any) -> None:
    """Random interleavings of writers, publishers and commits that come twice."""
    monkeypatch.setattr(limits, "COMMIT_TURN_BYTES", 500)
    rng = random.Random(5)
    async with start() as rig:
        expected: dict[str, list[bytes]] = {"t": [], "u": []}

        async def drive(name: str) -> None:
            staging, commits = rig.writes.staging, rig.writes.commits
            for epoch in range(8):
                topics: Named = {}
                for topic, part in [("t", 0), ("t", 1), ("u", 0)]:
                    rows = [b"%s %d %d %d" % (name.encode(), epoch, part, n) for n in range(40)]
                    expected[topic] += rows
                    for attempt in ("lost", "won"):
                        data = bytearray(block(rows if attempt == "won" else rows[:3]))
                        await staging.stage(name, epoch, (topic, part, attempt), 0, data)
                    topics.setdefault(topic, []).append((part, "won", len(data)))
                for _ in range(rng.randrange(5)):
                    await asyncio.sleep(0)
                found = await asyncio.gather(
                    *[commits.commit(name, epoch, topics) for _ in range(rng.choice((1, 3)))]
                )
                states = sorted(page["t"]["state"] for page in found)
                assert states == ["already"] * (len(found) - 1) + ["committed"]

        async def publish(topic: str) -> None:
            for number in range(300):
                row = b"live %d" % number
                expected[topic].append(row)
                append(rig.engine.open_log(topic), row)
                await asyncio.sleep(0)

        await asyncio.gather(*map(drive, ("a", "b", "c")), *map(publish, ("t", "u")))
        await rig.engine.settle()
        for topic, rows in expected.items():
            assert sorted(rig.rows(topic)) == sorted(rows)


async def test_a_topic_in_memory(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no more than it may, and is finished when there is room."""
    monkeypatch.setattr(limits, "COMMIT_TURN_BYTES", 300)
    monkeypatch.setattr(limits, "COMMIT_RETRY", 0)
    async with start(sync="none") as rig:
        log = rig.engine.open_log("t#ephemeral", True)
        cursor = log.open_cursor("c")
        rows = [bytes(100_000)] * 12  # more than such a log may have
        named = [await rig.stage(0, "t#ephemeral", part, rows) for part in (0, 1)]
        refusal = await refused(rig.commit(0, {"t#ephemeral": named}))
        assert refusal.status == 507
        consumer = LocalConsumer(cursor, 1 << 20)
        got = 0
        while rig.writes.commits.writers["w"].intent is not None:
            await asyncio.sleep(0)
            records, consumer.records = consumer.records, []
            for record in records:
                consumer.finish(record[0])
                got += 1
        while got < 24:
            await asyncio.sleep(0)
            got += len(consumer.records)
            consumer.records = []
        assert log.visible == 25


async def test_a_commit_and_a_reader_hold_the_same_log(start: Any) -> None:
    """Whoever is done first lets nothing go that the other needs."""
    async with start() as rig:
        holds, log = rig.writes.holds, rig.engine.open_log("t")
        await publish(log, [b"."] * 10)
        holds.hold(log, "reader", 3)
        named = await rig.stage(0, "t", 0, ROWS)
        vfs.fail(SYNC, errno.EIO, 12)
        assert (await refused(rig.commit(0, {"t": [named]}))).status == 503
        assert log.retention.retained_from == 3
        holds.hold(log, "reader", 30)
        assert log.retention.retained_from == 11
        assert (await rig.commit(0, {"t": [named]}))["t"]["records"] == 50
        assert log.retention.retained_from == 30
        holds.hold(log, "reader", None)
        assert log.retention.retained_from is None
