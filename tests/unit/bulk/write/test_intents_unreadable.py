"""Small files of the bulk API that do not read: each stops one thing, and says so."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from support.bulk.rig import BulkRig, refused
from support.engine import finish_all

from broker.base.durable import sealed, unsealed
from broker.bulk.access import IDENTITY, IdentityError, identity
from broker.bulk.write import commits
from broker.bulk.write.intents import (
    VERSION,
    Intent,
    Plan,
    WriterState,
    intent_path,
    load_intents,
    load_state,
    save_intent,
    survey,
)
from broker.bulk.write.staging import Bounds
from broker.engine.cursor.local import LocalConsumer

ROWS = [b"%d " % number + b"." * 100 for number in range(1000)]
INTENT = Intent(VERSION, "w", 2, "00" * 12, {"t": Plan("11" * 16, 1, [(0, "a", 56)])})


def test_a_sum_belongs_to_its_content() -> None:
    text = b'{"seq": 20}'
    data = sealed(text)
    assert unsealed(data) == text
    assert unsealed(text) == text, "a file of before there were sums"
    for at in range(len(data)):
        for bit in range(8):
            harmed = bytearray(data)
            harmed[at] ^= 1 << bit
            try:
                found = unsealed(bytes(harmed))
            except ValueError:
                continue
            assert found == bytes(harmed), "the line of the sum is none any more: no JSON either"
            assert found != text


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_an_intent_that_does_not_read_stops_its_writer_alone(tmp_path: Path, harm: str) -> None:
    root = tmp_path / "staged"
    save_intent(root, INTENT)
    other = Intent(VERSION, "other", 1, "00" * 12, {})
    save_intent(root, other)
    path = intent_path(root, "w")
    data = path.read_bytes()
    path.write_bytes(data[:-30] if harm == "cut" else data.replace(b'"epoch":2', b'"epoch":3'))
    for _ in range(2):  # it is as bad at the next start
        found, unknown = survey(root, tmp_path / "logs")
        assert found == [other]
        assert any(word in unknown["w"] for word in ("unreadable", "is wrong", "truncated"))
    assert not path.exists()
    assert path.with_name("w.json.unreadable").exists()


@pytest.mark.parametrize("name", ["w.json", "w.json.json", "w.json.unreadable", ".json"])
def test_an_unreadable_intent_of_a_writer_named_like_a_file(tmp_path: Path, name: str) -> None:
    root = tmp_path / "staged"
    intent_path(root, name).parent.mkdir(parents=True)
    intent_path(root, name).write_bytes(b"rubbish")
    for _ in range(2):
        assert list(load_intents(root)[1]) == [name]


@pytest.mark.parametrize("times", [1, 100])
def test_an_intent_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """It is read again; if it cannot be, no later start may take it up: by then its logs may have
    dropped what it had appended."""
    root = tmp_path / "staged"
    save_intent(root, INTENT)
    path, read, left = intent_path(root, "w"), Path.read_bytes, times

    def failing(self: Path) -> bytes:
        nonlocal left
        if self == path and left:
            left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", failing)
    found, unknown = load_intents(root)
    assert (found, list(unknown)) == (([INTENT], []) if times == 1 else ([], ["w"]))
    monkeypatch.undo()
    found, unknown = load_intents(root)
    assert (found, list(unknown)) == (([INTENT], []) if times == 1 else ([], ["w"]))


def test_an_intent_of_another_version_stays_where_it_is(tmp_path: Path) -> None:
    root = tmp_path / "staged"
    save_intent(root, INTENT)
    path = intent_path(root, "w")
    path.write_bytes(sealed(unsealed(path.read_bytes()).replace(b'"version":1', b'"version":7')))
    found, unknown = load_intents(root)
    assert not found
    assert "version 7" in unknown["w"]
    assert path.exists()


def test_an_epoch_that_does_not_read_is_not_taken_for_another(tmp_path: Path) -> None:
    """One digit more or less would publish a commit twice, or not at all."""

    async def run() -> None:
        rig = BulkRig(tmp_path, Bounds(disk_reserve=0), "none")
        await rig.writes.start(rig.engine)
        await rig.publish(1, "t", [b"a", b"b"])
        await rig.close()
        state = tmp_path / "staged" / "w" / "state.json"
        state.write_bytes(state.read_bytes().replace(b'"epoch":1', b'"epoch":0'))
        save_intent(tmp_path / "staged", INTENT)
        rig = BulkRig(tmp_path, Bounds(disk_reserve=0), "none")
        await rig.writes.start(rig.engine)
        assert rig.engine.shared.health.has("writer", "w")
        named = await rig.stage_for("other", 1, "t", [b"c"])
        assert (await refused(rig.commit(1, {"t": [(0, "a", 1)]}))).status == 500
        await rig.writes.commits.commit("other", 1, {"t": [named]})
        assert rig.rows("t") == [b"a", b"b", b"c"]
        await rig.close()

    asyncio.run(run())


async def ended_before_its_intent_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record of the commit is in the log, and the state of its writer is unreadable."""

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    rig = BulkRig(tmp_path, Bounds(disk_reserve=0), "none")
    await rig.writes.start(rig.engine)
    await rig.publish(1, "t", [b"before"])
    named = await rig.stage(2, "t", 0, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "remove_intent", failing)
        assert (await refused(rig.commit(2, {"t": [named]}))).status == 503
        await rig.close()
    assert rig_files(tmp_path) > 2
    state = tmp_path / "staged" / "w" / "state.json"
    state.write_bytes(state.read_bytes().replace(b'"epoch":2', b'"epoch":1'))


def rig_files(folder: Path) -> int:
    return len(list((folder / "logs" / "t").glob("*.seg")))


async def test_what_an_unreadable_writers_commit_needs_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is read to the end meanwhile. Records that retention had dropped would be appended
    again when the operator has removed the file; without staged blocks no record could be."""
    await ended_before_its_intent_was_removed(tmp_path, monkeypatch)
    rig = BulkRig(tmp_path, Bounds(disk_reserve=0), "none")
    await rig.writes.start(rig.engine)
    assert rig.engine.shared.health.has("writer", "w")
    log, files = rig.engine.log("t"), rig_files(tmp_path)
    reader = LocalConsumer(log.open_cursor("c"), 1 << 30)
    arrived = asyncio.Event()
    reader.arrived = arrived.set
    while len(reader.records) <= len(ROWS):
        await arrived.wait()
        arrived.clear()
    finish_all(reader)
    await rig.engine.settle()
    rig.engine.maintain()
    await rig.writes.staging.expire(1 << 62)
    assert rig_files(tmp_path) == files
    assert rig.writes.staging.batch("w", 2) is not None
    await rig.close()
    (tmp_path / "staged" / "w" / "state.json").unlink()
    rig = BulkRig(tmp_path, Bounds(disk_reserve=0), "none")
    await rig.writes.start(rig.engine)
    await asyncio.gather(*rig.writes.commits._tasks)
    assert rig.writes.commits.finished == 1
    assert rig.rows("t") == [b"before", *ROWS]
    await rig.close()


def test_a_state_that_was_written_without_a_sum_reads(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "state.json").write_bytes(b'{"version":1,"writer":"w","topics":{}}')
    assert load_state(tmp_path, "w") == WriterState(1, "w", {}, None)


def test_an_identity_is_not_another_one(tmp_path: Path) -> None:
    before = identity(tmp_path, "", None)
    assert identity(tmp_path, "", None) == before
    path = tmp_path / IDENTITY
    digit = before.broker_id[0].encode()
    path.write_bytes(path.read_bytes().replace(digit, b"0" if digit != b"0" else b"1", 1))
    with pytest.raises(IdentityError):
        identity(tmp_path, "", None)
