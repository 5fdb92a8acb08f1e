"""Messages of a stream that go for their age."""

from __future__ import annotations

from errno import EIO
from pathlib import Path

import pytest
from support.engine import OPEN, SECOND, SYNC, WRITE, Rig
from support.native.stores import kill, publish, watch_expiry

from broker.engine.stream.store import StreamLimits, StreamStore, open_store
from broker.runtime import vfs

NAME = "js A/S"
DAY = 24 * 3600 * SECOND


def open_in(rig: Rig, limits: StreamLimits | None = None) -> StreamStore:
    return open_store(rig.engine, NAME, limits or StreamLimits())


def seqs(store: StreamStore) -> list[int]:
    return [s for s in range(store.first_seq, store.last_seq + 1) if store.message(s)]


def test_messages_go_when_they_are_too_old(tmp_path: Path) -> None:
    limits = StreamLimits(max_age_ns=10 * SECOND)
    with Rig(tmp_path) as rig:
        store = open_in(rig, limits)
        publish(store, b"a")
        publish(store, b"b", ttl_ns=-1)
        rig.settle()
        rig.advance(5)
        publish(store, b"c")
        rig.settle()
        rig.advance(4.9)
        assert seqs(store) == [1, 2, 3]
        rig.advance(0.2)
        assert seqs(store) == [2, 3]
        rig.advance(6)
        assert seqs(store) == [2]
        assert store.messages == 1
        publish(store, b"d")
        rig.settle()
        rig.advance(11)
        assert seqs(store) == [2]
        store.set_limits(StreamLimits())
        publish(store, b"e")
        rig.settle()
        rig.advance(60)
        assert seqs(store) == [2, 5]
        store.set_limits(limits)
        rig.advance(0.1)
        assert seqs(store) == [2]


def test_messages_that_live_longer_do_not_keep_others(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, StreamLimits(max_age_ns=10 * SECOND))
        publish(store, b"a", ttl_ns=100 * SECOND)
        rig.settle()
        rig.advance(11)
        assert seqs(store) == []
        publish(store, b"b")
        rig.settle()
        rig.advance(11)
        assert seqs(store) == []


def test_a_message_that_does_not_read_when_it_is_due_goes_later(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        store = open_in(rig)
        publish(store, b"a", ttl_ns=10 * SECOND)
        rig.settle()
        for _ in range(5):
            rig.advance(1)  # its file is closed
        vfs.fail(OPEN, 5, times=1000)
        for _ in range(7):
            rig.advance(1)
        assert store.messages == 1
        vfs.heal()
        for _ in range(12):
            rig.advance(1)
        assert store.messages == 0


@pytest.mark.parametrize("aged", [False, True])
def test_a_lost_file_does_not_keep_the_messages_of_others(tmp_path: Path, *, aged: bool) -> None:
    """Its own wait: they may have a file again."""
    limits = StreamLimits(max_age_ns=20 * SECOND) if aged else StreamLimits()
    with Rig(tmp_path, sync="always", segment_bytes=4096) as rig:
        store = open_store(rig.engine, NAME, limits, sync="always")
        for i in range(400):
            publish(store, b"a.%d" % i, ttl_ns=0 if aged else 20 * SECOND)
            rig.settle()
        files = sorted(tmp_path.rglob("*.seg"))
        assert len(files) > 3
        for _ in range(5):
            rig.advance(1)  # the files are closed
        for lost in files[:2]:
            lost.rename(lost.with_suffix(".lost"))
        for _ in range(30):
            rig.advance(1)
        assert 0 < store.messages < 200
        assert sum(text == "segment cannot be read" for _, text, _ in rig.reports) < 10
        assert seqs(store) == []  # they do not read
        for lost in files[:2]:
            lost.with_suffix(".lost").rename(lost)
        for _ in range(12):
            rig.advance(1)
        assert store.messages == 0


def test_very_many_messages_go_in_several_turns(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, StreamLimits(max_age_ns=10 * SECOND))
        for _ in range(5_000):
            publish(store, b"a")
        rig.settle()
        rig.turn.set_clock(rig.turn.now_ns + 11 * SECOND, rig.turn.wall_ns + 11 * SECOND)
        rig.turn.run_timers()
        assert 0 < store.messages < 5_000
        rig.advance(12)
        assert store.messages == 0
        rig.close()


def test_messages_go_at_their_own_time(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        last = watch_expiry(store)
        publish(store, b"a", ttl_ns=3 * SECOND)
        publish(store, b"a", ttl_ns=2 * SECOND)
        publish(store, b"b", ttl_ns=9 * SECOND)
        publish(store, b"c", ttl_ns=SECOND)
        publish(store, b"d", ttl_ns=40 * SECOND)
        rig.settle()
        kill(store, 4)
        rig.advance(1)
        assert seqs(store) == [1, 2, 3, 5]
        rig.advance(1)
        assert seqs(store) == [1, 3, 5]
        assert last == []
        rig.advance(1)
        assert seqs(store) == [3, 5]
        assert last == [b"a"]
        clock = rig.turn.now_ns, rig.turn.wall_ns
        rig.close()
    with Rig(tmp_path, clock=(clock[0] + 20 * SECOND, 0)) as rig:
        store = open_in(rig)
        last = watch_expiry(store)
        rig.advance(0.1)
        assert (seqs(store), last) == ([5], [b"b"])
        rig.advance(20)
        assert (seqs(store), last) == ([], [b"b", b"d"])
        rig.close()


def set_clock(rig: Rig, wall_ns: int) -> None:
    """Set the wall clock; the monotonic one goes on."""
    rig.turn.set_clock(rig.loop.now_ns, wall_ns)


def step(rig: Rig, seconds: float) -> None:
    """Let time pass on both clocks, whatever the wall clock shows."""
    wall_ns = rig.turn.wall_ns + int(seconds * SECOND)
    rig.loop.now_ns += int(seconds * SECOND)
    set_clock(rig, wall_ns)
    rig.turn.run_timers()
    rig.settle()


def test_a_time_to_live_counts_from_now_after_the_clock_was_set_back(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        wall_ns = rig.turn.wall_ns
        set_clock(rig, wall_ns + 400 * DAY)
        publish(store, b"a")
        rig.settle()
        set_clock(rig, wall_ns)
        publish(store, b"b", ttl_ns=2 * SECOND)
        rig.settle()
        step(rig, 1.9)
        assert seqs(store) == [1, 2]
        step(rig, 0.2)
        assert seqs(store) == [1]


def test_messages_have_the_right_time_again_once_the_others_are_gone(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        wall_ns = rig.turn.wall_ns
        set_clock(rig, wall_ns + 400 * DAY)
        publish(store, b"a")
        rig.settle()
        set_clock(rig, wall_ns)
        publish(store, b"b")
        rig.settle()
        assert store.last_ns == wall_ns + 400 * DAY  # times never decrease
        assert [kill(store, seq) for seq in (1, 2)] == [True, True]
        publish(store, b"c")
        rig.settle()
        assert store.last_ns == store.first_ns == wall_ns


@pytest.mark.parametrize("limits", [StreamLimits(), StreamLimits(max_age_ns=DAY)])
def test_messages_go_soon_after_the_clock_is_set_forward(
    tmp_path: Path, limits: StreamLimits
) -> None:
    """As after a virtual machine was suspended: its monotonic clock stood still meanwhile."""
    with Rig(tmp_path) as rig:
        store = open_in(rig, limits)
        publish(store, b"a", ttl_ns=0 if limits.max_age_ns else DAY)
        rig.settle()
        step(rig, 1)
        set_clock(rig, rig.turn.wall_ns + DAY)
        step(rig, 61)
        assert seqs(store) == []


@pytest.mark.parametrize("call", [WRITE, SYNC])
def test_a_message_that_was_not_stored_does_not_keep_others(tmp_path: Path, call: int) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        publish(store, b"a", ttl_ns=10 * SECOND)
        rig.settle()
        vfs.fail(call, EIO)
        publish(store, b"b", ttl_ns=5 * SECOND)
        rig.settle()
        vfs.heal()
        assert seqs(store) == [1]
        rig.advance(11)
        assert seqs(store) == []
