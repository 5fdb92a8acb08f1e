"""The ids of messages that come twice."""

from __future__ import annotations

from errno import EIO
from pathlib import Path

from support.engine import SECOND, WRITE, Rig
from support.native.stores import duplicate_of, forget_ids_from, publish, remember_id

from broker.engine.stream.dedupe import Duplicates
from broker.engine.stream.store import StreamLimits, StreamStore, open_store
from broker.runtime import vfs

LIMITS = StreamLimits(duplicate_window_ns=10 * SECOND)


def open_in(rig: Rig) -> StreamStore:
    return open_store(rig.engine, "js A/S", LIMITS, id_header=b"Msg-Id")


def store_once(store: StreamStore, key: bytes) -> int:
    seq = publish(store, b"a", headers=b"H/1\r\nOther: 1\r\nMsg-Id: %s\r\n\r\n" % key)
    remember_id(store, key, seq)
    return seq


def test_an_id_is_known_for_the_window(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert store_once(store, b"x") == 1
        rig.settle()
        rig.advance(4)
        assert store_once(store, b"y") == 2
        rig.settle()
        assert [duplicate_of(store, key) for key in (b"x", b"y", b"z")] == [1, 2, 0]
        rig.advance(6)
        assert [duplicate_of(store, key) for key in (b"x", b"y")] == [0, 2]
        rig.advance(4)
        assert duplicate_of(store, b"y") == 0


def test_ids_are_known_after_a_restart(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for i in range(5):
            store_once(store, b"id-%d" % i)
            rig.settle()
            rig.advance(3)
        clock = rig.turn.now_ns
        rig.close()
    with Rig(tmp_path, clock=(clock, 0)) as rig:
        store = open_in(rig)
        assert [duplicate_of(store, b"id-%d" % i) for i in range(5)] == [0, 0, 3, 4, 5]
        rig.close()


def test_blanks_after_an_id_count_before_and_after_a_restart(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for key in (b"x", b"x ", b"x\t"):
            store_once(store, key)
        rig.settle()
        clock = rig.turn.now_ns
        rig.close()
    with Rig(tmp_path, clock=(clock, 0)) as rig:
        store = open_in(rig)
        assert [duplicate_of(store, key) for key in (b"x", b"x ", b"x\t")] == [1, 2, 3]
        rig.close()


def test_the_id_of_a_message_that_failed_is_not_known(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        store_once(store, b"x")
        rig.settle()
        vfs.fail(WRITE, EIO)
        for key in (b"y", b"z"):
            store_once(store, key)
        assert duplicate_of(store, b"y") == 2
        rig.settle()
        vfs.heal()
        assert [duplicate_of(store, key) for key in (b"x", b"y", b"z")] == [1, 0, 0]
        rig.advance(2)
        assert store_once(store, b"z") == 2
        assert [duplicate_of(store, key) for key in (b"x", b"y", b"z")] == [1, 0, 2]
        rig.settle()


def test_the_oldest_of_too_many_are_forgotten(tmp_path: Path) -> None:
    duplicates = Duplicates(SECOND, b"Id", 8)
    assert (duplicates.ids_max, duplicates.window_ns) == (8, SECOND)
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for i in range(5000):
            remember_id(store, b"%d" % i, i + 1)
        assert store.duplicates.size == 5000
        assert [duplicate_of(store, b"%d" % i) for i in (0, 1023, 4999)] == [1, 1024, 5000]


def test_of_very_many_ids_the_last_ones_are_forgotten(tmp_path: Path) -> None:
    """As many as need more than one table."""
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for _ in range(2):
            for seq in range(60_000 if store.duplicates.size else 1, 70_001):
                remember_id(store, b"%d" % seq, seq)
            for seq in (1, 59_999, 60_000, 65_536, 65_537, 70_000):
                assert duplicate_of(store, b"%d" % seq) == seq
            forget_ids_from(store, 60_000)
            assert store.duplicates.size == 59_999
            assert duplicate_of(store, b"59999") == 59_999
            for seq in (60_000, 65_536, 65_537, 70_000):
                assert duplicate_of(store, b"%d" % seq) == 0
        forget_ids_from(store, 1)
        assert store.duplicates.size == duplicate_of(store, b"1") == 0
        remember_id(store, b"1", 7)
        assert duplicate_of(store, b"1") == 7


def test_the_window_is_as_long_after_the_clock_was_set_back(tmp_path: Path) -> None:
    day = 24 * 3600 * SECOND
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        wall_ns = rig.turn.wall_ns
        rig.turn.set_clock(rig.loop.now_ns, wall_ns + 400 * day)
        store_once(store, b"x")
        rig.settle()
        rig.turn.set_clock(rig.loop.now_ns, wall_ns)
        store_once(store, b"y")
        rig.settle()
        assert [duplicate_of(store, key) for key in (b"x", b"y")] == [1, 2]
        rig.turn.set_clock(rig.loop.now_ns, wall_ns + 11 * SECOND)
        assert [duplicate_of(store, key) for key in (b"x", b"y")] == [0, 0]
        assert store.duplicates.size == 0  # nothing keeps them in memory
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig)  # the times of both messages are in the future
        assert [duplicate_of(store, key) for key in (b"x", b"y")] == [1, 2]
        rig.advance(11)
        assert [duplicate_of(store, key) for key in (b"x", b"y")] == [0, 0]
