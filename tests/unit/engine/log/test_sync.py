"""When a publish is answered: group commit, periods, and no sync at all."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    SYNC,
    SYNC_PATH,
    WRITE,
    Rig,
    numbered,
    readable_bodies,
)

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.policy import OWNED
from broker.engine.log.publish import append, outcome
from broker.runtime import vfs


@pytest.mark.parametrize("inline", [0, 1 << 17])
def test_publishers_of_a_turn_share_a_sync(tmp_path: Path, inline: int) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=inline) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])  # the file and the folders are new to the disk
        before = rig.engine.shared.syncs
        tickets = [append(log, body) for body in numbered(50)]
        assert {outcome(log, ticket) for ticket in tickets} == {0}
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        assert rig.engine.shared.syncs == before + 1


def test_nothing_is_answered_before_it_is_synced(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        shared = rig.engine.shared
        before = shared.syncs
        ticket = append(log, b"x")
        seen = []
        rig.loop.run()
        while not outcome(log, ticket):
            seen.append(shared.syncs)
            rig.loop.serve(5_000)
            rig.loop.run()
        assert set(seen) == {before}
        assert shared.syncs == before + 1


def test_what_was_written_during_a_sync_waits_for_the_next(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        before = rig.engine.shared.syncs
        early = append(log, b"early")
        rig.loop.run()
        late = append(log, b"late")
        rig.loop.run()
        assert log.visible == log.next_seq == 4
        while outcome(log, early) == 0:
            assert outcome(log, late) == 0
            rig.loop.serve(5_000)
        assert rig.engine.shared.syncs == before + 1
        assert outcome(log, late) == 0
        rig.settle()
        assert outcome(log, late) == 1
        assert rig.engine.shared.syncs == before + 2


def turn(rig: Rig, log: Any, count: int) -> list[int]:
    """The tickets of so many appends; their sync has begun then, and none has been heard of."""
    tickets = [append(log, body) for body in numbered(count)]
    rig.loop.run()
    return tickets


def test_two_syncs_are_under_way_when_enough_waits(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        before = rig.engine.shared.syncs
        tickets = turn(rig, log, 60)
        assert log.sync.under_way == 1
        tickets += turn(rig, log, 31)
        assert log.sync.under_way == 1, "31 of 60 wait for the next one"
        tickets += turn(rig, log, 10)
        assert log.sync.under_way == 2
        tickets += turn(rig, log, 1000)
        assert log.sync.under_way == 2
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        assert rig.engine.shared.syncs == before + 3


def test_the_earlier_of_two_syncs_answers_for_its_own_appends_only(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        early, late = turn(rig, log, 40), turn(rig, log, 40)
        assert log.sync.under_way == 2
        first = rig.engine.shared.syncer
        select.select([first.event_fd], [], [], 20)
        first.reap()
        assert {outcome(log, ticket) for ticket in early} == {1}
        assert {outcome(log, ticket) for ticket in late} == {0}
        rig.settle()
        assert {outcome(log, ticket) for ticket in late} == {1}


def test_the_later_of_two_syncs_answers_for_both(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        tickets = turn(rig, log, 40) + turn(rig, log, 40)
        second = rig.engine.shared.second_syncer
        select.select([second.event_fd], [], [], 20)
        second.reap()
        assert {outcome(log, ticket) for ticket in tickets} == {1}


def test_a_second_sync_waits_while_the_first_has_files_of_its_own(tmp_path: Path) -> None:
    """It would not cover them, and could not answer for their records."""
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17, segment_bytes=4096) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        turn(rig, log, 200)
        assert len(log.segments) > 1
        assert log.sync.under_way == 1
        late = turn(rig, log, 100)
        assert log.sync.under_way == 1
        rig.settle()
        assert {outcome(log, ticket) for ticket in late} == {1}


@pytest.mark.parametrize("after", [0, 1])
def test_when_one_of_two_syncs_fails(tmp_path: Path, after: int) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        vfs.fail(SYNC, errno.EIO, after)
        tickets = turn(rig, log, 40) + turn(rig, log, 40)
        rig.settle()
        outcomes = {outcome(log, ticket) for ticket in tickets}
        assert 0 not in outcomes
        assert rig.engine.shared.sync_errors == 1
        assert rig.publish(log, [b"after"]) == [1]
        # The third one hides what was refused: nothing, if the later sync ends first and succeeds.
        assert len(log.segments) == (3 if -1 in outcomes else 2)


def test_a_period_syncs_once_per_period(memory_path: Path) -> None:
    with Rig(memory_path, sync=2.5) as rig:
        log = rig.log()
        syncs = []
        for _ in range(10):
            assert rig.publish(log, [b"x"]) == [1]
            rig.advance(0.5)
            syncs.append(rig.engine.shared.syncs)
        assert syncs == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
        rig.advance(60)
        assert rig.engine.shared.syncs == 2


def test_no_policy_no_sync(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="none") as rig:
        rig.publish(rig.log(), [b"x"])
        rig.advance(10)
        rig.close()
        assert rig.engine.shared.syncs == 0


def test_readers_elsewhere_get_what_the_disk_has(tmp_path: Path) -> None:
    with Rig(tmp_path, sync=2.0, inline_bytes=1 << 17) as rig:
        log = rig.log()
        assert log.sync.durable_next == 1
        append(log, b"first")
        rig.loop.run()
        assert (log.visible, log.sync.durable_next) == (2, 1)
        rig.advance(2)
        assert log.sync.durable_next == 2
        append(log, b"second")
        rig.loop.run()
        assert (log.visible, log.sync.durable_next) == (3, 2)
        vfs.fail(SYNC, errno.EIO)
        try:
            rig.advance(2)
        finally:
            vfs.heal()
        assert log.sync.durable_next == 2


class _Begun(Rig):
    """Does not wait at its start for what it finds to be synced."""

    begun = False

    def settle(self) -> None:
        if self.begun:
            super().settle()


def test_files_that_go_while_they_wait_for_their_sync(tmp_path: Path) -> None:
    """What a process before has written is synced at the start, and consumers are quick."""
    small: dict[str, Any] = {"sync": "always", "segment_bytes": 1024}
    with Rig(tmp_path / "a", **small) as rig:
        log = rig.log()
        log.open_cursor("c")
        assert set(rig.publish(log, numbered(200))) == {1}
        rig.crash(tmp_path / "b")
    vfs.hold(SYNC_PATH)
    with _Begun(tmp_path / "b", **small) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.cursors["c"], 1000)
        rig.until(lambda: vfs.held(SYNC_PATH) == 1 and len(consumer.records) == 200)
        files = len(log.segments)
        for seq in range(1, 201):
            consumer.finish(seq)
        rig.loop.run()
        assert len(log.segments) < files
        rig.begun = True
        vfs.release(SYNC_PATH)
        assert rig.publish(log, [b"more"]) == [1]
        assert not rig.reports


def test_a_log_that_went_back_syncs_the_next_records_too(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        rig.publish(rig.log(), numbered(5))
        rig.log().skip_to(20)
        rig.settle()
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        assert log.next_seq == log.sync.durable_next == 20
        log.reuse_seqs_from(6)
        ticket = append(log, b"sixth")
        rig.loop.run()
        assert (log.next_seq, log.sync.durable_next, outcome(log, ticket)) == (7, 6, 0)
        rig.settle()
        assert (log.sync.durable_next, outcome(log, ticket)) == (7, 1)


@pytest.mark.parametrize("sync", ["always", 60.0])
def test_a_file_of_an_owned_log_waits_until_the_one_before_is_synced(
    tmp_path: Path, sync: str | float
) -> None:
    """Else a power cut could leave the later file without the end of the earlier one."""
    with Rig(tmp_path, sync=sync, inline_bytes=1 << 17, segment_bytes=1024) as rig:
        log = rig.engine.open_log("js.A/S", retention=OWNED)
        rig.publish(log, [b"first"])
        vfs.hold(SYNC)
        tickets = [append(log, body) for body in numbered(60)]
        rig.until(lambda: vfs.held(SYNC) > 0)
        files = [(os.fsdecode(each.path), each.first_seq) for each in log.segments]
        assert len(files) > 3
        assert log.visible == files[1][1], "the first file has its records, the second none"
        assert [Path(path).stat().st_size for path, _ in files[1:]] == [64] * (len(files) - 1)
        vfs.release(SYNC)
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        assert log.visible == log.next_seq == 62


def test_a_file_of_an_owned_log_waits_for_what_an_earlier_process_has_written(
    tmp_path: Path,
) -> None:
    small: dict[str, Any] = {"sync": "always", "inline_bytes": 1 << 17, "segment_bytes": 1024}
    with Rig(tmp_path / "a", **small) as rig:
        rig.publish(rig.engine.open_log("js.A/S", retention=OWNED), [b"first"])
        rig.crash(tmp_path / "b")
    vfs.hold(SYNC_PATH)  # the file of then is closed: it is synced by its name
    vfs.hold(SYNC)
    with _Begun(tmp_path / "b", **small) as rig:
        log = rig.engine.open_log("js.A/S", retention=OWNED)
        log.skip_to(10)  # a file of its own for what comes
        ticket = append(log, b"second")
        rig.until(lambda: vfs.held(SYNC) + vfs.held(SYNC_PATH) > 0)
        assert (log.visible, outcome(log, ticket)) == (10, 0), "it is not in its file"
        rig.begun = True
        vfs.release(SYNC)
        vfs.release(SYNC_PATH)
        rig.settle()
        assert (log.visible, outcome(log, ticket)) == (11, 1)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_what_waits_for_the_file_before_fails_with_its_sync(tmp_path: Path, after: int) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17, segment_bytes=1024) as rig:
        log = rig.engine.open_log("js.A/S", retention=OWNED)
        rig.publish(log, [b"first"])
        vfs.fail(SYNC, errno.EIO, after)
        outcomes = rig.publish(log, numbered(60))
        assert outcomes == sorted(outcomes, reverse=True), "those before the failure are stored"
        assert outcomes[-1] == -1
        rig.advance(2)
        assert set(rig.publish(log, numbered(60))) == {1}


def append_some(rig: Rig, log: Any, count: int) -> list[int]:
    """As one read of a connection each."""
    tickets = []
    for _ in range(count):
        tickets.append(append(log, b"x"))
        rig.turn.start_early()
    return tickets


def test_a_sync_begins_within_a_turn_with_half_of_what_waited_last(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log, shared = rig.log(), rig.engine.shared
        assert set(rig.publish(log, numbered(100))) == {1}
        written, synced = shared.inline_writes, shared.syncs
        tickets = append_some(rig, log, 49)
        assert shared.inline_writes == written
        tickets += append_some(rig, log, 1)
        assert shared.inline_writes == written + 1
        assert log.sync.under_way == 1
        tickets += append_some(rig, log, 50)
        assert shared.inline_writes == written + 1, "the disk is busy: the rest is one write"
        assert {outcome(log, ticket) for ticket in tickets} == {0}
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        assert shared.inline_writes == written + 2
        assert shared.syncs == synced + 2


@pytest.mark.parametrize(("before", "sync"), [(20, "always"), (100, 5.0), (100, "none")])
def test_it_waits_for_the_end_of_the_turn_where_nothing_is_gained(
    tmp_path: Path, before: int, sync: str | float
) -> None:
    """Few share one sync; answers that do not wait for a sync do not come earlier."""
    with Rig(tmp_path, sync=sync, inline_bytes=1 << 17) as rig:
        log, shared = rig.log(), rig.engine.shared
        rig.publish(log, numbered(before))
        written = shared.inline_writes
        append_some(rig, log, 31)
        assert shared.inline_writes == written
        append_some(rig, log, 1)
        assert shared.inline_writes == written + (sync == "always")


@pytest.mark.parametrize("call", [WRITE, SYNC])
def test_what_began_within_a_turn_can_fail(tmp_path: Path, call: int) -> None:
    """It is answered with the error, as is the rest of the turn, and nothing that was refused is
    there after a restart."""
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        rig.publish(log, numbered(100))
        vfs.fail(call, errno.EIO)
        tickets = append_some(rig, log, 60)
        rig.settle()
        vfs.heal()
        found = [outcome(log, ticket) if ticket else 0 for ticket in tickets]
        assert set(found[:50]) == {-1}
        assert 1 not in found
        stored = numbered(100)
        rig.advance(2)
        assert rig.publish(log, [b"after"]) == [1]
    with Rig(tmp_path, sync="always") as rig:
        assert readable_bodies(rig, rig.log()) == [*stored, b"after"]
