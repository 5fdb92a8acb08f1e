"""A stream: appends, reads, limits, totals, and the same after it was opened again."""

from __future__ import annotations

from errno import EIO
from pathlib import Path
from typing import Any

import pytest
from support.engine import SYNC, WRITE, Rig, flip_bit, wait
from support.native.stores import (
    kill,
    last_seq_of,
    outcome,
    publish,
    publish_at,
    refusal,
    skip,
)

from broker.engine.stream.store import StreamLimits, StreamStore, open_store
from broker.runtime import vfs

FULL_MSGS, FULL_BYTES, FULL_SUBJECT, FAILED = 1, 2, 3, 4
NAME = "js A/ORDERS"


def open_in(rig: Rig, *, memory: bool = False, sync: str = "always", **limits: Any) -> StreamStore:
    return open_store(rig.engine, NAME, StreamLimits(**limits), sync=sync, memory=memory)


def state(store: StreamStore) -> tuple[int, int, int, int]:
    return store.messages, store.bytes, store.first_seq, store.last_seq


def bodies(store: StreamStore) -> dict[int, bytes]:
    found = {}
    for seq in range(store.first_seq, store.last_seq + 1):
        message = store.message(seq)
        if message is not None:
            found[seq] = message[4]
    return found


def test_a_message_is_read_once_it_is_safe(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert state(store) == (0, 0, 1, 0)
        assert publish(store, b"orders.eu", b"body", headers=b"NATS/1.0\r\n\r\n") == 1
        assert last_seq_of(store, b"orders.eu") == 1
        assert store.message(1) is None
        assert outcome(store) == 0
        rig.settle()
        assert outcome(store) == 1
        found = store.message(1)
        assert found is not None
        assert found[2:] == (b"orders.eu", b"NATS/1.0\r\n\r\n", b"body")
        assert found[1] == store.first_ns == store.last_ns > 0
        assert state(store) == (1, 30 + 9 + 12 + 4 + 4, 1, 1)


def test_totals_of_messages_of_all_sizes(tmp_path: Path) -> None:
    """Neighbours whose sizes need one, two and four bytes, in any order."""
    sizes = [10, 300, 5, 70_000, 20, 1, 66_000, 255 - 31, 256 - 31, 65_535 - 31, 65_536 - 31] * 20
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for size in sizes:
            publish(store, b"s", b"x" * size)
            rig.settle()
        left = {seq: 30 + 1 + size for seq, size in enumerate(sizes, start=1)}
        assert store.bytes == sum(left.values())
        for seq in (*range(1, 200, 3), 220, 219, 2):
            assert kill(store, seq)
            del left[seq]
            assert store.bytes == sum(left.values())


def test_the_name_of_the_log_is_a_subject_like_others(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        publish(store, b"ORDERS", b"x")
        rig.settle()
        found = store.message(1)
        assert found is not None
        assert found[2] == b"ORDERS"
        assert store.bytes == 30 + 6 + 1


def test_bytes_in_memory_are_counted_as_the_original_does(tmp_path: Path) -> None:
    with Rig(None) as rig:
        store = open_in(rig, memory=True)
        publish(store, b"s", b"body", headers=b"h")
        rig.settle()
        assert state(store) == (1, 16 + 1 + 4 + 1, 1, 1)
        assert bodies(store) == {1: b"body"}


@pytest.mark.parametrize("memory", [False, True])
def test_old_messages_go_for_limits(tmp_path: Path, memory: bool) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, memory=memory, max_msgs=3)
        for i in range(5):
            publish(store, b"s", b"%d" % i)
        assert (store.messages, store.first_seq, store.last_seq) == (3, 3, 5)
        rig.settle()
        assert bodies(store) == {3: b"2", 4: b"3", 5: b"4"}
        assert store.message(2) is None
        assert store.bytes == sum(22 + 8 + 1 + 1 if not memory else 18 for _ in range(3))


def test_a_subject_has_its_own_limit(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, max_msgs_per_subject=2)
        for i in range(4):
            publish(store, b"a", b"%d" % i)
            publish(store, b"b", b"%d" % i)
        assert (store.messages, store.first_seq, store.last_seq) == (4, 5, 8)
        rig.settle()
        publish(store, b"c")
        publish(store, b"a", b"4")
        rig.settle()
        assert bodies(store) == {6: b"2", 7: b"3", 8: b"3", 9: b"", 10: b"4"}


def test_a_message_beyond_all_bytes_leaves_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, max_bytes=100)
        assert publish(store, b"s", b"x") == 1
        assert publish(store, b"s", b"x" * 200) == 2
        assert state(store) == (0, 0, 3, 2)
        rig.settle()
        assert outcome(store) == 1
        assert bodies(store) == {}
        assert publish(store, b"s", b"y") == 3
        rig.settle()
        assert bodies(store) == {3: b"y"}


def test_a_full_stream_refuses_what_is_new(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, max_msgs=2, discard_new=True)
        assert [publish(store, b"s") for _ in range(3)] == [1, 2, 0]
        assert refusal(store) == FULL_MSGS
        store = open_store(
            rig.engine, "js A/B", StreamLimits(max_bytes=80, discard_new=True), sync="always"
        )
        assert [publish(store, b"s", b"x" * 9) for _ in range(3)] == [1, 2, 0]
        assert refusal(store) == FULL_BYTES
        rig.settle()


def test_a_stream_that_refuses_what_is_new_keeps_what_it_has_when_its_limits_are_lowered(
    tmp_path: Path,
) -> None:
    for turn in range(2):
        with Rig(tmp_path) as rig:
            if turn:
                store = open_in(rig, max_msgs=2, max_bytes=60, discard_new=True)
            else:
                store = open_in(rig, discard_new=True)
                assert [publish(store, b"s") for _ in range(4)] == [1, 2, 3, 4]
                rig.settle()
                store.set_limits(StreamLimits(max_msgs=2, discard_new=True))
                store.set_limits(StreamLimits(max_bytes=60, discard_new=True))
                rig.settle()
            assert list(bodies(store)) == [1, 2, 3, 4]
            assert publish(store, b"s") == 0
            rig.close()


def test_a_full_stream_takes_what_replaces_a_message(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, max_msgs=2, max_msgs_per_subject=1, discard_new=True)
        assert [publish(store, b) for b in (b"a", b"b", b"c", b"a")] == [1, 2, 0, 3]
        assert (store.messages, store.first_seq) == (2, 2)
        store = open_store(
            rig.engine,
            "js A/B",
            StreamLimits(max_msgs_per_subject=1, discard_new=True, discard_new_per_subject=True),
        )
        assert [publish(store, b) for b in (b"a", b"b", b"a")] == [1, 2, 0]
        assert refusal(store) == FULL_SUBJECT
        rig.settle()


def test_it_is_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=400) as rig:
        store = open_in(rig)
        for i in range(50):
            publish(store, b"s.%d" % (i % 5), b"%d" % i, headers=b"h" * (i % 3))
            rig.settle()
        before = state(store), bodies(store), store.first_ns, store.last_ns
        rig.close()
    with Rig(tmp_path, segment_bytes=400) as rig:
        store = open_in(rig)
        assert (state(store), bodies(store), store.first_ns, store.last_ns) == before
        assert publish(store, b"s.1", b"more") == 51
        rig.settle()
        assert bodies(store)[51] == b"more"
        rig.close()


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, max_msgs=3, max_msgs_per_subject=2)
        for subject in (b"a", b"b", b"a"):
            publish(store, subject)
        rig.settle()
        before = state(store), bodies(store), store.last_ns
        vfs.fail(WRITE, EIO)
        for subject in (b"a", b"b", b"c", b"c", b"c"):
            publish(store, subject)
        assert (store.messages, store.last_seq) == (3, 8)
        rig.settle()
        assert outcome(store) == -1
        assert (state(store), bodies(store), store.last_ns) == before
        assert [last_seq_of(store, s) for s in (b"a", b"b", b"c")] == [3, 2, 0]
        vfs.heal()
        rig.advance(2)
        assert publish(store, b"b", b"now") == 4
        rig.settle()
        assert outcome(store) == 1
        assert bodies(store) == {2: b"", 3: b"", 4: b"now"}


def test_a_sync_that_fails_changes_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig, max_msgs_per_subject=1)
        publish(store, b"a", b"old")
        rig.settle()
        before = state(store), bodies(store), store.last_ns
        vfs.fail(SYNC, EIO)
        publish(store, b"a", b"new")
        rig.settle()
        assert outcome(store) == -1
        assert (state(store), bodies(store), store.last_ns) == before
        vfs.heal()
        rig.advance(2)
        seq = publish(store, b"a", b"newer")
        assert seq > 1
        rig.settle()
        assert outcome(store) == 1
        after = state(store), bodies(store)
        assert after[1] == {seq: b"newer"}
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig, max_msgs_per_subject=1)
        assert bodies(store)[seq] == b"newer"
        rig.close()


def test_seqs_may_be_left_out(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert publish_at(store, 7, b"a", b"7") == 7
        assert publish_at(store, 3, b"a") == 0
        assert skip(store) == 8
        assert (store.messages, store.first_seq, store.last_seq) == (1, 7, 8)
        assert publish(store, b"a", b"9") == 9
        far = 10**12
        assert publish_at(store, far, b"a", b"far") == far
        assert publish(store, b"a", b"on") == far + 1
        assert skip(store) == far + 2
        rig.settle()
        found = {seq: store.message(seq) for seq in (7, 8, 9, 10, far - 1, far, far + 1, far + 2)}
        assert [seq for seq, message in found.items() if message] == [7, 9, far, far + 1]
        before = state(store)
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert state(store) == before
        assert {seq: store.message(seq) for seq in found} == found
        assert publish(store, b"a") == far + 3
        rig.close()


@pytest.mark.parametrize("far", [2**32 - 1, 2**32, 2**32 + 1, 2**33])
def test_seqs_that_follow_each_other_leave_the_span_of_a_file(tmp_path: Path, far: int) -> None:
    """Not only one that is left out: records further from a file's first seq count as damage."""
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        publish(store, b"a", b"first")
        rig.settle()
        wait(rig, store.purge(seq=far))
        last = [publish(store, b"a", b"%d" % number) for number in range(4)]
        assert last == [far + number for number in range(4)]
        rig.settle()
        before = bodies(store)
        assert list(before) == last
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert bodies(store) == before
        assert publish(store, b"a") == far + 4
        assert not rig.reports
        rig.close()


def test_the_first_seq_may_be_far(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert publish_at(store, 10**12, b"a", b"far") == 10**12
        rig.settle()
        assert bodies(store) == {10**12: b"far"}
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert bodies(store) == {10**12: b"far"}
        rig.close()


def test_an_empty_stream_begins_after_what_was_skipped(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert [skip(store), skip(store)] == [1, 2]
        rig.settle()
        assert outcome(store) == 1
        assert state(store) == (0, 0, 3, 2)
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert state(store) == (0, 0, 3, 2)
        assert publish(store, b"a") == 3
        rig.close()


@pytest.mark.parametrize("rollup", [1, 2])
def test_a_rollup_replaces_earlier_messages(tmp_path: Path, rollup: int) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for subject in (b"a", b"b", b"a"):
            publish(store, subject, b"old")
        assert publish(store, b"a", b"new", rollup=rollup) == 4
        left = {2: b"old", 4: b"new"} if rollup == 1 else {4: b"new"}
        assert store.messages == len(left)
        rig.settle()
        assert bodies(store) == left
        publish(store, b"b", b"last")
        rig.settle()
        left[5] = b"last"
        before = state(store)
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert (state(store), bodies(store)) == (before, left)
        rig.close()


@pytest.mark.parametrize(
    ("pattern", "left"), [(b"k.*", [1, 4]), (b"*.a.>", [1, 2, 3]), (b"k.>", [1]), (b">", [])]
)
def test_a_rollup_of_a_subject_with_wildcards(
    tmp_path: Path, pattern: bytes, left: list[int]
) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for subject in (b"j", b"k.a", b"k.b", b"k.a.c"):
            publish(store, subject, b"old")
        publish(store, b"k.a", b"new")  # may be replaced by a limit as well
        left = [*left, 5] if pattern == b"*.a.>" else left
        assert publish(store, pattern, b"roll", rollup=3) == 6
        assert store.messages == len(left) + 1
        rig.settle()
        assert sorted(bodies(store)) == [*left, 6]
        before = state(store)
        rig.close()
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        assert (state(store), sorted(bodies(store))) == (before, [*left, 6])
        rig.close()


def test_a_message_can_go_by_itself(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        for i in range(4):
            publish(store, b"s", b"%d" % i)
        assert not kill(store, 1)  # it may still fail
        rig.settle()
        assert [kill(store, seq) for seq in (1, 3, 3, 9)] == [True, True, False, False]
        assert bodies(store) == {2: b"1", 4: b"3"}
        assert (store.messages, store.first_seq, store.last_seq) == (2, 2, 4)
        rig.settle()


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_message_goes_while_one_that_replaces_it_can_still_fail(
    tmp_path: Path, gone: int
) -> None:
    """For its age, say, or because its consumers are done with it."""
    with Rig(tmp_path) as rig:
        store = open_in(rig, max_msgs_per_subject=3)
        for _ in range(3):
            publish(store, b"s", b"old")
        rig.settle()
        publish(store, b"s", b"roll", rollup=1)
        assert kill(store, gone)
        for _ in range(3):
            publish(store, b"s", b"new")
        assert (store.messages, store.first_seq) == (3, 5)
        vfs.fail(WRITE, EIO, 0, 2)  # also that of the deletes
        rig.settle()
        vfs.heal()
        left = [seq for seq in (1, 2, 3) if seq != gone]
        assert (list(bodies(store)), store.messages) == (left, 2)
        rig.advance(3)
        for _ in range(2):
            publish(store, b"s", b"new")
        rig.settle()
        assert (list(bodies(store)), store.messages) == ([left[1], 4, 5], 3)


def test_damage_is_counted(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=600) as rig:
        store = open_in(rig)
        for i in range(30):
            publish(store, b"s", b"%02d" % i * 8)
        rig.settle()
        assert kill(store, 4)
        folder = Path(store.log.folder or "")
        rig.close()
    first, *_, last = sorted(folder.glob("*.seg"))
    for file in (first, last):
        flip_bit(file, 64 + 2 * 64 + 50)  # the body of its third record
    with Rig(tmp_path, segment_bytes=600) as rig:
        store = open_in(rig)
        third = int(last.stem) + 2
        assert store.message(3) is None
        assert store.message(third) is None
        assert (store.messages, store.lost_messages) == (27, 2)
        assert store.lost_bytes > 0
        found = bodies(store)
        assert found.keys() == set(range(1, 31)) - {3, 4, third}
        rig.close()


def test_seqs_of_several_failures_are_used_again(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        store = open_in(rig)
        publish(store, b"s", b"one")
        rig.settle()
        for call in (SYNC, WRITE):
            vfs.fail(call, EIO)
            publish(store, b"s", b"failed")
            rig.settle()
            vfs.heal()
            rig.advance(3)
        store.reuse_gap()
        for seq in (2, 3):
            assert publish(store, b"s", b"next") == seq
        rig.settle()
        assert bodies(store) == {1: b"one", 2: b"next", 3: b"next"}
