"""Records that came with a commit: nobody gets the commit's id, and each is found again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.clients.upload import block
from support.engine import Rig, segment_files
from support.native.routing import Subscriber

from broker.engine.bulk.blocks import Appender, find_staged
from broker.engine.cursor.deadletter import DeadLetters
from broker.engine.cursor.local import LocalConsumer, peek_log

COMMIT = b"\x01commit\xff"
BODIES = [b"%d" % number for number in range(40)]


def put(rig: Rig, have: Any = (), commit: bytes = COMMIT) -> Appender:
    appender = Appender(rig.log(), commit, have)
    appender.load(block(BODIES))
    while appender.step(200) > 0:
        pass
    rig.settle()
    return appender


def found(rig: Rig, commit: bytes = COMMIT) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    assert rig.root is not None
    for path in segment_files(rig.root):
        more, _, _ = find_staged(
            os.fsencode(path), rig.log().log_id, int(path.stem), 2**64 - 1, commit
        )
        ranges += more
    return ranges


@pytest.mark.parametrize("memory", [True, False])
def test_nobody_gets_the_id(tmp_path: Path, memory: bool) -> None:
    with Rig(None if memory else tmp_path) as rig:
        subscriber = Subscriber(rig.router)
        subscriber.subscribe(b"1", b"t")
        consumer = LocalConsumer(rig.log().open_cursor("c"), 100)
        consumer.heads = []
        put(rig)
        assert {heard[2] for heard in subscriber.received} == {b""}
        assert [heard[3] for heard in subscriber.received] == BODIES
        assert {reply for _, reply, _ in consumer.heads} == {b""}
        page = peek_log(rig.log(), 1, 100).read(1 << 20)
        assert {(row[3], row[6]) for row in page.values()} == {(b"", False)}
        assert [row[5] for row in page.values()] == BODIES
        subscriber.close()


def test_a_dead_letter_has_no_reply(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        cursor = rig.log().open_cursor("c")
        letters = DeadLetters(cursor, 1, "d", rig.engine.open_log, lambda *_: b"")
        letters.begin()
        consumer = LocalConsumer(cursor, 100)
        put(rig)
        for record in list(consumer.records):
            consumer.requeue(record[0])
        rig.settle()
        page = peek_log(rig.engine.log("d"), 1, 100).read(1 << 20)
        assert {row[3] for row in page.values()} == {b""}
        assert [row[5] for row in page.values()] == BODIES


def test_what_a_log_has_is_found_and_the_rest_is_added(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1 << 10) as rig:
        put(rig, [(0, 3), (10, 40)])
        put(rig, commit=b"another.")
        assert found(rig) == [(3, 10)]
        appender = put(rig, [(3, 10)])
        assert (appender.number, appender.records) == (40, 33)
        bodies = sorted(number for first, behind in found(rig) for number in range(first, behind))
        assert bodies == list(range(40))
        assert found(rig, b"no such.") == []


def test_damaged_records_are_not_found(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        put(rig)
        (path,) = segment_files(tmp_path)
        raw = bytearray(path.read_bytes())
        raw[raw.index(COMMIT, 500)] ^= 1
        path.write_bytes(raw)
        numbers = [n for first, behind in found(rig) for n in range(first, behind)]
        assert len(numbers) == 39


_TRUNCATED = """
import os, sys, threading
from broker.engine.bulk.blocks import find_staged
path, log_id, end = os.fsencode(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3])
behind = []
for _ in range(20):
    os.truncate(path, 64 << 20)  # as a file that was made beforehand
    asked = path, log_id, 1, 2**64 - 1, b"\\x01commit\\xff", end
    looking = threading.Thread(target=lambda: behind.append(find_staged(*asked)))
    looking.start()
    os.truncate(path, end)
    looking.join()
assert [ranges for ranges, _, _ in behind] == [[(0, 40)]] * 20
"""


def test_zeros_are_cut_off_while_the_file_is_looked_at(tmp_path: Path) -> None:
    """The log is open, and whoever touches what was cut off is ended by a signal."""
    with Rig(tmp_path) as rig:
        put(rig)
        (segment,) = rig.log().segments
        (path,) = segment_files(tmp_path)
        more = [str(path), rig.log().log_id.hex(), str(segment.planned)]
        rig.close()
    subprocess.run([sys.executable, "-c", _TRUNCATED, *more], check=True)
