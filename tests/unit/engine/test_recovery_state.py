"""Opening logs whose metadata or journals are not as they were left."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest
from support.engine import Rig, bodies_of, finish_all, make_log, numbered, read_log, segment_files

from broker.engine import recovery
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.files import crc_of
from broker.engine.log.record import crc32c

HEADER = 64
BODIES = numbered(5, size=21)


# --- metadata


def test_metadata_is_lost(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    (tmp_path / "t" / "meta.json").unlink()
    assert read_log(tmp_path, b"more")[0] == BODIES
    assert read_log(tmp_path)[0] == [*BODIES, b"more"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\0", b"[]", b"{}", b'{"version":1}', b"null"])
def test_metadata_is_garbage(tmp_path: Path, content: bytes) -> None:
    """What a power cut leaves of a small file must not keep the broker from starting."""
    make_log(tmp_path, BODIES)
    meta = tmp_path / "t" / "meta.json"
    meta.write_bytes(content)
    found, rig = read_log(tmp_path, b"more")
    assert found == BODIES
    assert "meta.json" in rig.engine.problems[0]
    found, rig = read_log(tmp_path)
    assert (found, rig.engine.problems) == ([*BODIES, b"more"], [])


def test_metadata_of_another_version_is_refused(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    meta = tmp_path / "t" / "meta.json"
    page = {**json.loads(meta.read_text()), "version": 7}
    del page["crc"]
    meta.write_text(json.dumps({**page, "crc": crc_of(page)}))
    with Rig(tmp_path) as rig:
        said = rig.engine.shared.health.first()
        assert "metadata version 7; this build reads 1" in str(said)


def test_no_metadata_and_no_header(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    (tmp_path / "t" / "meta.json").unlink()
    (file,) = segment_files(tmp_path)
    file.write_bytes(b"x" * HEADER + file.read_bytes()[HEADER:])
    with Rig(tmp_path) as rig:
        said = rig.engine.shared.health.first()
        assert "no metadata and no readable segment header" in str(said)


@pytest.mark.parametrize("meta", [None, b"", bytes(300)])
def test_a_log_of_which_nothing_was_synced(tmp_path: Path, meta: bytes | None) -> None:
    """A power cut may keep pages of its records, and neither its metadata nor its header."""
    make_log(tmp_path, BODIES)
    shutil.rmtree(tmp_path / "t" / "cursors")
    path = tmp_path / "t" / "meta.json"
    path.unlink()
    if meta is not None:
        path.write_bytes(meta)
    (file,) = segment_files(tmp_path)
    torn = bytes(512) + file.read_bytes()[HEADER:]
    file.write_bytes(torn)
    with Rig(tmp_path) as rig:
        assert rig.engine.shared.health.first() is None
        assert "is put aside as" in rig.engine.problems[-1]
        rig.publish(rig.log(), [b"new"])
    assert read_log(tmp_path)[0] == [b"new"]
    (kept,) = tmp_path.glob(".unreadable-t-*/*.seg.unreadable")
    assert kept.read_bytes() == torn


def test_a_log_of_which_only_a_channel_was_synced(tmp_path: Path) -> None:
    consumed(tmp_path)
    (tmp_path / "t" / "meta.json").write_bytes(b"")
    (file,) = segment_files(tmp_path)
    file.write_bytes(bytes(512) + file.read_bytes()[HEADER:])
    with Rig(tmp_path) as rig:
        assert rig.engine.shared.health.first() is None
        log = rig.engine.log("t")
        assert list(log.cursors) == ["c"]
        # what was numbered once keeps its number
        assert rig.publish(log, [b"new"]) == [1]
        assert log.next_seq == 7
    assert list((tmp_path / "t").glob("*.seg.unreadable"))


def test_folders_that_are_no_logs(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / ".deleted-1").mkdir()
    (tmp_path / "t" / "notes.txt").write_text("mine")
    assert read_log(tmp_path)[0] == BODIES
    assert (tmp_path / "t" / "notes.txt").exists()


# --- journals


def consumed(root: Path) -> None:
    """Five records: 1 and 3 finished, 2 in flight for the second time, 4 deferred, 5 waiting."""
    with Rig(root) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 4)
        rig.publish(log, BODIES)
        consumer.set_credit(3)
        consumer.requeue(2)
        consumer.requeue(4, 100)
        consumer.finish(1)
        consumer.finish(3)
        rig.settle()
        consumer.set_credit(1)
        rig.close()


def state(rig: Rig) -> tuple[int, ...]:
    cursor = rig.engine.log("t").cursors["c"]
    return cursor.acks.floor, cursor.acks.count, cursor.depth, cursor.deferred_count


def test_a_journal_torn_at_every_byte(tmp_path: Path) -> None:
    """Never an error, never more acked than was, and what was acked last is lost first."""
    consumed(tmp_path / "whole")
    (file,) = (tmp_path / "whole" / "t" / "cursors").iterdir()
    data = file.read_bytes()
    acked = []
    for kept in range(len(data) + 1):
        root = tmp_path / str(kept)
        shutil.copytree(tmp_path / "whole", root)
        (root / "t" / "cursors" / file.name).write_bytes(data[:kept])
        with Rig(root) as rig:
            floor, count, depth, deferred = state(rig)
            done = floor - 1 + count
            assert done + depth + deferred == len(BODIES)
            consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 10)
            rig.settle()
            assert not {1, 3}.intersection(r[0] for r in consumer.records) or done < 2
            rig.close()
        acked.append(done)
    assert acked == sorted(acked)
    assert acked[-1] == 2


def test_a_journal_of_garbage_is_kept(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    (file,) = (tmp_path / "t" / "cursors").iterdir()
    garbage = random.Random(9).randbytes(300)
    file.write_bytes(garbage)
    found, rig = read_log(tmp_path)
    assert found == BODIES
    assert "300 bytes" in rig.engine.problems[0]
    kept = [p.read_bytes() for p in file.parent.iterdir()]
    assert garbage in kept
    found, rig = read_log(tmp_path)
    assert (found, rig.engine.problems) == (BODIES, [])


def test_a_right_sum_over_nonsense_values(tmp_path: Path) -> None:
    """Seqs beyond anything the log could hold: the journal does not count, the records do."""
    make_log(tmp_path, BODIES)
    (file,) = (tmp_path / "t" / "cursors").iterdir()
    data = file.read_bytes()
    huge = b"\xff" * 9 + b"\x01"
    for payload in (
        b"\x01\x01" + huge,
        b"\x01" + huge + b"\x01",
        b"\x02" + huge,
        b"\x04" + huge,
        b"\x03" + huge + b"\x01\x00",
        b"\x03\x02" + huge + b"\x00",
        b"\x03\x02\x01" + huge,
    ):
        file.write_bytes(data + struct.pack("<II", len(payload), crc32c(payload)) + payload)
        found, rig = read_log(tmp_path)
        assert sorted(found) == BODIES, payload
        assert rig.engine.problems, payload
        file.write_bytes(data)


def test_segments_are_dropped_before_the_journal_knows(tmp_path: Path) -> None:
    """What stood in them is finished: it is neither counted nor looked for. It is said once."""
    limits = {"segment_bytes": 2048}
    bodies = numbered(200, size=60)
    with Rig(tmp_path / "a", **limits) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 150)
        rig.publish(log, bodies)
        consumer.requeue(110, 5)
        for seq in (*range(1, 101), 120):
            consumer.finish(seq)
        kept = log.first_seq
        assert 1 < kept <= 101
        rig.crash(tmp_path / "b")  # without the end of the turn
    with Rig(tmp_path / "b", **limits) as rig:
        ((level, text, fields),) = rig.reports
        assert (level, fields["first"], fields["count"]) == ("warning", 1, kept - 1)
        assert "count as finished" in text
        floor, count, depth, deferred = state(rig)
        assert (floor, count, depth + deferred) == (kept, 0, 201 - kept)
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 300)
        rig.advance(6)
        assert sorted(seq for seq, *_ in consumer.records) == list(range(kept, 201))
        assert len(rig.reports) == 1
        rig.close()
    with Rig(tmp_path / "b", **limits) as rig:
        assert rig.reports == rig.engine.problems == []


def test_dropped_segments_and_acks_behind_them(tmp_path: Path) -> None:
    """A journal with gaps below and acks above what is kept."""
    limits = {"segment_bytes": 2048}
    with Rig(tmp_path, **limits) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 200)
        rig.publish(log, numbered(200, size=60))
        for seq in (3, 4, 5, 60, 100, 150):
            consumer.finish(seq)
        rig.close()
    first, second, third, *_ = segment_files(tmp_path)
    first.unlink()
    second.unlink()
    kept = int(third.stem)
    assert 5 < kept < 60
    with Rig(tmp_path, **limits) as rig:
        ((_, _, fields),) = rig.reports
        assert fields["count"] == kept - 1 - 3
        floor, count, depth, _ = state(rig)
        assert (floor, count, depth) == (kept, 3, 201 - kept - 3)
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 300)
        rig.settle()
        assert sorted(seq for seq, *_ in consumer.records) == sorted(
            {*range(kept, 201)} - {60, 100, 150}
        )


def test_a_snapshot_that_was_not_finished(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    (file,) = (tmp_path / "t" / "cursors").iterdir()
    file.with_name(file.name + ".new").write_bytes(b"half")
    found, rig = read_log(tmp_path)
    assert (found, rig.engine.problems) == (BODIES, [])
    assert [p.name for p in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("times", [1, 100])
def test_a_journal_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The disk is asked again; only then is it put aside, and its records are given out again."""
    with Rig(tmp_path) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        rig.publish(log, [b"one", b"two"])
        finish_all(consumer)
        rig.close()
    read, left = recovery.read_journal, times

    def failing(path: str) -> object:
        nonlocal left
        if left:
            left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return read(path)

    monkeypatch.setattr(recovery, "read_journal", failing)
    with Rig(tmp_path) as rig:
        consumer = LocalConsumer(rig.log().cursors["c"], 100)
        rig.settle()
        assert bodies_of(consumer) == ([] if times == 1 else [b"one", b"two"])
        aside = list((tmp_path / "t/cursors").glob("*.unreadable"))
        assert len(aside) == (0 if times == 1 else 1)
