"""Opening logs whose segments are not as they were left."""

from __future__ import annotations

import errno
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from support.engine import Rig, bodies_of, flip_bit, make_log, numbered, read_log, segment_files

from broker.engine.cursor.local import LocalConsumer
from broker.runtime import vfs

CALL_OPEN = 0  # of vfs.pxd
HEADER = 64
RECORD = 40


def record_size(body: bytes) -> int:
    return -(-(RECORD + len(body)) // 8) * 8


# --- the end of the last file


BODIES = numbered(5, size=21)


def test_a_tail_torn_at_every_byte(tmp_path: Path) -> None:
    make_log(tmp_path / "whole", BODIES)
    size = record_size(BODIES[-1])
    unpadded = RECORD + len(BODIES[-1])
    for kept in range(size):
        root = tmp_path / f"cut{kept}"
        shutil.copytree(tmp_path / "whole", root)
        (file,) = segment_files(root)
        data = file.read_bytes()
        file.write_bytes(data[: len(data) - size + kept])
        left = BODIES if kept >= unpadded else BODIES[:-1]
        found, rig = read_log(root, b"more")
        assert found == left, kept
        torn = kept if kept < unpadded else 0
        assert rig.engine.shared.torn_bytes == torn
        assert [p for p in rig.engine.problems if "torn tail" in p] == rig.engine.problems
        assert len(rig.engine.problems) == (torn > 0)
        copies = [p.read_bytes() for p in (root / "t").glob("*.torn-*")]
        assert b"".join(copies) == (data[len(data) - size :][:torn] if torn else b"")
        found, rig = read_log(root)
        assert found == [*left, b"more"], kept
        assert rig.engine.problems == []


def test_bytes_behind_the_last_record_are_cut_and_kept(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    (file,) = segment_files(tmp_path)
    good = file.read_bytes()
    file.write_bytes(good + b"garbage" * 30)
    found, rig = read_log(tmp_path, b"more")
    assert found == BODIES
    assert "torn tail of 210 bytes" in rig.engine.problems[0]
    (kept,) = (tmp_path / "t").glob("*.torn-*")
    assert kept.read_bytes() == b"garbage" * 30
    assert read_log(tmp_path)[0] == [*BODIES, b"more"]


def test_zeros_behind_the_last_record_are_cut(tmp_path: Path) -> None:
    """As preallocation or a power cut leaves them."""
    make_log(tmp_path, BODIES)
    (file,) = segment_files(tmp_path)
    file.write_bytes(file.read_bytes() + bytes(4096))
    assert read_log(tmp_path, b"more")[0] == BODIES
    assert not list((tmp_path / "t").glob("*.torn-*"))
    assert read_log(tmp_path)[0] == [*BODIES, b"more"]


@pytest.mark.parametrize("left", [0, 1, 63])
def test_a_last_file_without_a_whole_header(tmp_path: Path, left: int) -> None:
    bodies = numbered(30)
    make_log(tmp_path, bodies, segment_bytes=512)
    *_, file = segment_files(tmp_path)
    first = int(file.stem)
    file.write_bytes(file.read_bytes()[:left])
    found, _ = read_log(tmp_path, b"more", segment_bytes=512)
    assert found == bodies[: first - 1]
    assert read_log(tmp_path, segment_bytes=512)[0] == [*bodies[: first - 1], b"more"]


@pytest.mark.parametrize("cut", [0, 64, 192])
@pytest.mark.parametrize(
    "content",
    [b"", bytes(HEADER), bytes(4096), None],
    ids=["empty", "header of zeros", "zeros", "header"],
)
def test_files_that_were_begun_before_the_end_of_the_one_before_was_written(
    tmp_path: Path, content: bytes | None, cut: int
) -> None:
    """As a kill leaves them: two more files were begun while a batch was still to be written."""
    bodies = numbered(30)
    make_log(tmp_path, bodies, segment_bytes=512)
    *_, before, one, two = segment_files(tmp_path)
    for file in (one, two):
        file.write_bytes(file.read_bytes()[:HEADER] if content is None else content)
    before.write_bytes(before.read_bytes()[: -cut or None])
    left = bodies[: int(one.stem) - 1 - -(-cut // record_size(bodies[0]))]
    with Rig(tmp_path, segment_bytes=512) as rig:
        assert all("torn tail" in problem for problem in rig.engine.problems)
        log = rig.engine.log("t")
        assert log.next_seq == len(left) + 1
        assert [p.name for p in segment_files(tmp_path)][-1] == (before if cut else one).name
        cursor = log.open_cursor("late", start=1)
        assert cursor.depth == len(left)
        rig.publish(log, [b"more"])
        rig.settle()
        rig.close()
        assert not rig.reports
    found, rig = read_log(tmp_path, segment_bytes=512)
    assert found == [*left, b"more"]
    assert not rig.reports


def test_a_damaged_end_before_a_file_without_records_stays(tmp_path: Path) -> None:
    """What was acknowledged may be there: its seq must not be used again."""
    bodies = numbered(30)
    make_log(tmp_path, bodies, segment_bytes=512)
    *_, before, last = segment_files(tmp_path)
    last.write_bytes(last.read_bytes()[:HEADER])
    flip_bit(before, before.stat().st_size - 3)
    damaged = before.read_bytes()
    found, rig = read_log(tmp_path, b"more", segment_bytes=512)
    assert found == bodies[: int(last.stem) - 2]
    assert rig.log().next_seq == int(last.stem) + 1
    assert rig.reports
    assert before.read_bytes() == damaged
    assert not list((tmp_path / "t").glob("*.torn-*"))


def test_seqs_that_were_left_out_on_purpose_are_not_used(tmp_path: Path) -> None:
    """As an import leaves them: its last messages were dropped by the other server."""
    make_log(tmp_path, BODIES)
    with Rig(tmp_path) as rig:
        rig.log().skip_to(20)
        rig.settle()
    with Rig(tmp_path) as rig:
        assert rig.log().next_seq == 20
        rig.publish(rig.log(), [b"more"])
        assert rig.log().next_seq == 21


def test_a_file_after_seqs_were_left_out_with_an_error_says_so(tmp_path: Path) -> None:
    full = HEADER + sum(record_size(body) for body in BODIES)
    with Rig(tmp_path, segment_bytes=full) as rig:
        rig.publish(rig.log(), BODIES)
        vfs.fail(CALL_OPEN, errno.EIO, times=1)
        with pytest.raises(OSError, match="Input/output"):
            rig.log().skip_to(20)
        vfs.heal()
        rig.publish(rig.log(), [b"more"])
        first, second = segment_files(tmp_path)
        assert int(second.stem) == 20
        assert (first.read_bytes()[48], second.read_bytes()[48]) == (5, 1)


# --- bytes in the middle


def check_flips(tmp_path: Path, limits: dict[str, Any], which: int, count: int) -> None:
    """Flip a bit of each byte of a middle record of file `which`; the others are served."""
    bodies = numbered(count, size=21)
    make_log(tmp_path / "whole", bodies, **limits)
    file = segment_files(tmp_path / "whole")[which]
    start = HEADER + 2 * record_size(bodies[0])
    lost = bodies[int(file.stem) - 1 + 2]
    rng = random.Random(which)
    for offset in range(record_size(bodies[0])):
        root = tmp_path / f"flip{offset}"
        shutil.copytree(tmp_path / "whole", root)
        damaged = root / "t" / file.name
        flip_bit(damaged, start + offset, rng.randrange(8))
        before = damaged.read_bytes()
        found, rig = read_log(root, b"more", **limits)
        padding = offset >= RECORD + len(lost)
        assert found == [b for b in bodies if padding or b != lost], offset
        said = [*rig.engine.problems, *(text for _, text, _ in rig.reports)]
        assert bool(said) == (not padding), offset
        assert rig.engine.shared.quarantined_ranges == (not padding)
        assert rig.engine.shared.quarantined_bytes == (not padding) * record_size(lost)
        assert damaged.read_bytes()[: len(before)] == before
        found, rig = read_log(root, **limits)
        assert found == [*(b for b in bodies if padding or b != lost), b"more"], offset


def test_a_flipped_bit_in_the_last_file(tmp_path: Path) -> None:
    check_flips(tmp_path, {}, -1, 6)


def test_a_flipped_bit_in_an_old_file(tmp_path: Path) -> None:
    check_flips(tmp_path, {"segment_bytes": 512}, 1, 30)


def test_a_flipped_bit_with_many_loads_to_a_file(tmp_path: Path) -> None:
    check_flips(tmp_path, {"segment_bytes": 4096, "load_bytes": 64}, 0, 100)


def test_a_record_given_again_out_of_a_file_with_damage(tmp_path: Path) -> None:
    """The way to a record leads over one that is damaged; only the damaged one is lost."""
    bodies = numbered(60)
    limits = {"segment_bytes": 1024}
    with Rig(tmp_path / "a", **limits) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        rig.publish(log, bodies)
        assert bodies_of(consumer) == bodies
        rig.crash(tmp_path / "b")
    file = segment_files(tmp_path / "b")[0]
    size = record_size(bodies[0])
    flip_bit(file, HEADER + size + 8, 5)  # the seq of the second record
    flip_bit(file, HEADER + 4 * size, 2)  # the length of the fifth
    found, rig = read_log(tmp_path / "b", **limits)
    assert sorted(found) == sorted(set(bodies) - {bodies[1], bodies[4]})
    assert rig.reports
    assert rig.engine.shared.quarantined_ranges == 2


def test_damage_in_two_places_and_a_torn_tail(tmp_path: Path) -> None:
    bodies = numbered(20)
    make_log(tmp_path, bodies)
    (file,) = segment_files(tmp_path)
    size = record_size(bodies[0])
    for number in (3, 4, 9):
        flip_bit(file, HEADER + number * size + RECORD, 1)
    file.write_bytes(file.read_bytes()[:-10])
    found, rig = read_log(tmp_path, b"more")
    assert found == [b for i, b in enumerate(bodies) if i not in (3, 4, 9, 19)]
    assert rig.engine.shared.quarantined_ranges == 2
    assert rig.engine.shared.torn_bytes == size - 10


# --- whole files


def test_a_truncated_old_file_is_reported(tmp_path: Path) -> None:
    bodies = numbered(60)
    make_log(tmp_path, bodies, segment_bytes=512)
    _, second, third, *_ = segment_files(tmp_path)
    second.write_bytes(second.read_bytes()[: HEADER + 3 * record_size(bodies[0]) + 5])
    lost = bodies[int(second.stem) - 1 + 3 : int(third.stem) - 1]
    found, rig = read_log(tmp_path, b"more", segment_bytes=512)
    assert found == [b for b in bodies if b not in lost]
    assert rig.reports, "records were lost and nobody heard of it"


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "zeros", "stub"])
def test_an_old_file_is_lost(tmp_path: Path, damage: str) -> None:
    bodies = numbered(60)
    make_log(tmp_path, bodies, segment_bytes=512)
    first, second, third, *_ = segment_files(tmp_path)
    data = second.read_bytes()
    rng = random.Random(7)
    if damage == "missing":
        second.unlink()
    else:
        second.write_bytes(
            {
                "empty": b"",
                "garbage": rng.randbytes(len(data)),
                "zeros": bytes(len(data)),
                "stub": data[:10],
            }[damage]
        )
    lost = bodies[int(second.stem) - 1 : int(third.stem) - 1]
    found, rig = read_log(tmp_path, b"more", segment_bytes=512)
    assert found == [b for b in bodies if b not in lost]
    assert rig.reports or rig.engine.problems
    assert read_log(tmp_path, segment_bytes=512)[0] == [
        *(b for b in bodies if b not in lost),
        b"more",
    ]
    assert first.exists()


def test_a_last_file_of_garbage(tmp_path: Path) -> None:
    bodies = numbered(60)
    make_log(tmp_path, bodies, segment_bytes=512)
    *_, last = segment_files(tmp_path)
    garbage = random.Random(8).randbytes(400)
    last.write_bytes(garbage)
    found, rig = read_log(tmp_path, b"more", segment_bytes=512)
    left = bodies[: int(last.stem) - 1]
    assert found == left
    assert rig.engine.problems
    kept = b"".join(p.read_bytes() for p in (tmp_path / "t").iterdir() if p.is_file())
    assert garbage[HEADER:] in kept
    assert read_log(tmp_path, segment_bytes=512)[0] == [*left, b"more"]


def test_the_only_file_is_missing_but_a_cursor_knows(tmp_path: Path) -> None:
    """Seqs that a cursor has seen are not used for other records."""
    with Rig(tmp_path) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 3)
        rig.publish(log, BODIES)
        assert bodies_of(consumer) == BODIES[:3]
        for seq in (1, 2, 3):
            consumer.finish(seq)
        rig.settle()
        rig.close()
    (file,) = segment_files(tmp_path)
    file.unlink()
    found, rig = read_log(tmp_path, b"more")
    assert found == []
    assert "missing" in rig.engine.problems[0]
    assert read_log(tmp_path)[0] == [b"more"]


def test_a_segment_of_another_version_is_refused(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    (file,) = segment_files(tmp_path)
    data = bytearray(file.read_bytes())
    struct.pack_into("<H", data, 8, 9)
    file.write_bytes(data)
    with Rig(tmp_path) as rig:
        assert "t" in rig.engine.quarantined
        assert ".seg: log format version 9; this build reads 2" in rig.engine.shared.health.first()
    assert file.read_bytes() == data


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    make_log(tmp_path, BODIES)
    (file,) = (tmp_path / "t" / "cursors").iterdir()
    data = bytearray(file.read_bytes())
    data[8] = 2
    file.write_bytes(data)
    with Rig(tmp_path) as rig:
        assert "t" in rig.engine.quarantined
        said = rig.engine.shared.health.first()
        assert ".cur: journal format version 2; this build reads 1" in said
    assert file.read_bytes() == data


# --- all kinds of records


def test_bodies_of_all_sizes(tmp_path: Path) -> None:
    bodies = [b"", b"x", b"", b"y" * 7, b"z" * 600, b"", b"w" * 5000, b"v" * (1 << 20), b""]
    with Rig(tmp_path, segment_bytes=512) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        for body in bodies:
            assert rig.publish(log, [body]) == [1]
        assert bodies_of(consumer) == bodies
        rig.close()
    assert read_log(tmp_path, segment_bytes=512)[0] == bodies


def test_headers_reply_and_subject_are_kept(tmp_path: Path) -> None:
    for generation in range(2):
        with Rig(tmp_path) as rig:
            log = rig.log()
            if not generation:
                log.open_cursor("c")
                rig.publish(log, [b"one"], headers=b"NATS/1.0\r\n\r\n", reply=b"back", flags=1)
                rig.publish(log, [b"two"], subject=b"t")
                rig.publish(log, [b""], subject=b"other.name", reply=b"r")
            consumer = LocalConsumer(log.cursors["c"], 100)
            consumer.heads = []
            rig.settle()
            assert bodies_of(consumer) == [b"one", b"two", b""]
            assert consumer.heads == [
                (b"t", b"back", b"NATS/1.0\r\n\r\n"),
                (b"t", b"", b""),
                (b"other.name", b"r", b""),
            ]
            rig.close()


def test_names_of_logs_and_cursors(tmp_path: Path) -> None:
    names = ["a", ".", "..", "a/b", "%2E", "x#y", "ü", ".deleted", "UPPER", "a" * 64]
    with Rig(tmp_path) as rig:
        for name in names:
            log = rig.log(name)
            log.open_cursor(name)
            rig.publish(log, [name.encode()])
        rig.close()
    with Rig(tmp_path) as rig:
        assert sorted(rig.engine.logs) == sorted(names)
        for name in names:
            consumer = LocalConsumer(rig.log(name).cursors[name], 1)
            rig.settle()
            assert bodies_of(consumer) == [name.encode()]
        rig.close()
