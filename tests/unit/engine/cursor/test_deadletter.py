"""Dead letters: what was delivered often enough leaves for another log, safely."""

from __future__ import annotations

import ast
import errno
from pathlib import Path
from typing import Any

import pytest
from support.engine import SYNC, WRITE, Rig, bodies_of, numbered

from broker.engine.cursor.deadletter import ADDRESSED, DeadLetters
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append
from broker.runtime import vfs

WAIT = 10.0
LIMIT = 2


def heads(cursor: Any, facts: Any) -> bytes:
    return repr((cursor.log.name, cursor.name, *facts)).encode()


class Mail:
    """A rig with a log `t`, its cursor `c`, and dead letters in `d`."""

    def __init__(self, root: Path | None, rig: Rig | None = None, **limits: Any) -> None:
        self.rig = rig or Rig(root, **limits)
        self.log = self.rig.log()
        self.cursor = self.log.open_cursor("c")
        self.letters = DeadLetters(self.cursor, LIMIT, "d", self.rig.engine.open_log, heads)
        self.letters.begin()
        self.consumer = LocalConsumer(self.cursor, 10, WAIT)
        self.rig.settle()

    def taken(self) -> list[tuple[int, int]]:
        self.rig.settle()
        records, self.consumer.records = self.consumer.records, []
        return [record[:2] for record in records]

    def dead(self) -> list[bytes]:
        """Bodies of the dead letters."""
        log = self.rig.engine.log("d")
        if log is None:
            return []
        consumer = LocalConsumer(log.open_cursor("look"), 100)
        self.rig.settle()
        found = bodies_of(consumer)
        consumer.leave()
        return found

    def fail(self, *, by: str = "requeue") -> None:
        """One delivery that comes to nothing."""
        ((seq, _),) = self.taken()
        if by == "requeue":
            assert self.consumer.requeue(seq) == 0
        elif by == "delay":
            assert self.consumer.requeue(seq, 3600) == 0
        elif by == "timeout":
            self.rig.advance(WAIT + 1)
        else:
            self.consumer.leave()
            self.consumer = LocalConsumer(self.cursor, 10, WAIT)
        self.rig.settle()


@pytest.fixture(autouse=True)
def healed() -> Any:
    yield
    vfs.heal()


@pytest.mark.parametrize(
    ("by", "reason"),
    [("requeue", "requeue"), ("delay", "requeue"), ("timeout", "timeout"), ("leave", "close")],
)
def test_the_last_failed_delivery(tmp_path: Path, by: str, reason: str) -> None:
    mail = Mail(tmp_path)
    with mail.rig as rig:
        assert rig.publish(mail.log, [b"x"], headers=b"H", reply=b"R") == [1]
        mail.fail()
        mail.fail(by=by)
        assert mail.taken() == []
        rig.advance(7200)
        assert mail.taken() == []
        look = LocalConsumer(rig.engine.log("d").open_cursor("look"), 9)
        look.heads = []
        rig.settle()
        ((_, _, _, body),) = look.records
        ((subject, reply, head),) = look.heads
        fields = ast.literal_eval(head.decode())
        assert (body, subject, reply) == (b"x", b"d", b"R")
        assert fields[:5] == ("t", "c", 1, LIMIT, reason)
        assert fields[6:] == (b"t", b"H")
        assert (mail.cursor.acks.floor, mail.cursor.inflight.size) == (2, 0)
        assert (mail.letters.count, mail.letters.leaving) == (1, 0)


def test_many_that_failed_before_the_limit_leave_in_parts(tmp_path: Path) -> None:
    """All at once they would keep the other connections waiting."""
    count, at_once = 5000, 4096
    with Rig(tmp_path) as rig:
        log = rig.log()
        cursor = log.open_cursor("c")
        rig.publish(log, numbered(count))
        for _ in range(LIMIT):
            consumer = LocalConsumer(cursor, count, WAIT)
            rig.settle()
            consumer.leave()
        letters = DeadLetters(cursor, LIMIT, "d", rig.engine.open_log, heads)
        letters.begin()
        rig.settle()
        assert (letters.count, cursor.deferred_count) == (at_once, count - at_once)
        assert not letters.failing
        rig.advance(1)
        assert (letters.count, cursor.deferred_count) == (count, 0)


def test_fewer_failures_change_nothing(tmp_path: Path) -> None:
    mail = Mail(tmp_path)
    with mail.rig as rig:
        rig.publish(mail.log, [b"x"])
        mail.fail()
        ((seq, attempts),) = mail.taken()
        assert attempts == LIMIT
        assert mail.consumer.finish(seq) == 0
        rig.settle()
        assert rig.engine.log("d") is None


def test_a_full_disk_keeps_the_original(tmp_path: Path) -> None:
    mail = Mail(tmp_path)
    with mail.rig as rig:
        rig.publish(mail.log, [b"x"])
        mail.fail()
        vfs.fail(WRITE, errno.ENOSPC, times=10**6)
        mail.fail()
        for _ in range(3):
            rig.advance(5)
            assert mail.taken() == []
            assert mail.cursor.acks.floor == 1
        assert [text for _, text, _ in rig.reports].count("a dead letter cannot be stored") == 1
        vfs.heal()
        for _ in range(5):
            rig.advance(2)
        assert mail.dead() == [b"x"]
        assert mail.cursor.acks.floor == 2


def test_it_is_tried_again_when_the_log_cannot_be_made(tmp_path: Path) -> None:
    mail = Mail(tmp_path)
    with mail.rig as rig:
        rig.publish(mail.log, [b"x"])
        mail.fail()
        (tmp_path / "d").write_bytes(b"in the way")
        mail.fail()
        assert mail.cursor.acks.floor == 1
        (tmp_path / "d").unlink()
        rig.advance(2)
        assert mail.dead() == [b"x"]


@pytest.mark.parametrize("sync", ["none", "always"])
def test_acked_only_when_the_other_log_has_answered(tmp_path: Path, sync: str) -> None:
    mail = Mail(tmp_path, sync=sync)
    with mail.rig as rig:
        rig.publish(mail.log, [b"x"])
        mail.fail()
        ((seq, _),) = mail.taken()
        mail.consumer.requeue(seq)
        assert mail.letters.leaving == 1
        assert mail.cursor.acks.floor == 1
        if sync == "always":
            vfs.fail(SYNC, errno.EIO)
            rig.settle()
            assert mail.letters.count + mail.cursor.deferred_count == 1
            rig.advance(2)
        rig.settle()
        assert mail.cursor.acks.floor == 2
        assert set(mail.dead()) == {b"x"}


def test_after_a_crash_it_leaves_at_once(tmp_path: Path) -> None:
    """The end came after the last failure and before the dead letter."""
    mail = Mail(tmp_path / "a")
    with mail.rig as rig:
        rig.publish(mail.log, [b"x"])
        mail.fail()
        mail.taken()
        rig.settle()
        rig.crash(tmp_path / "b")
    mail = Mail(None, Rig(tmp_path / "b"))
    with mail.rig:
        assert mail.taken() == []
        assert mail.dead() == [b"x"]
        assert mail.cursor.acks.floor == 2


def test_emptied_or_deleted_under_way(tmp_path: Path) -> None:
    mail = Mail(tmp_path)
    with mail.rig as rig:
        rig.publish(mail.log, [b"x", b"y"])
        mail.taken()
        mail.consumer.leave()
        mail.consumer = LocalConsumer(mail.cursor, 10, WAIT)
        mail.taken()
        mail.consumer.leave()
        assert mail.letters.leaving == 2
        mail.cursor.empty()
        rig.settle()
        assert sorted(mail.dead()) == [b"x", b"y"]
        assert mail.cursor.acks.floor == 3
        mail.log.delete_cursor("c")


def test_a_limit_that_ends(tmp_path: Path) -> None:
    mail = Mail(tmp_path)
    with mail.rig as rig:
        rig.publish(mail.log, [b"x"])
        mail.letters.end()
        for _ in range(5):
            mail.fail()
        assert mail.taken() == [(1, 6)]
        assert mail.dead() == []


def test_a_log_is_not_its_own_dead_letters() -> None:
    with Rig(None) as rig:
        log = rig.log("d")
        cursor = log.open_cursor("c")
        DeadLetters(cursor, 1, "d", rig.engine.open_log, heads).begin()
        consumer = LocalConsumer(cursor, 1)
        rig.publish(log, [b"x"])
        assert consumer.requeue(1) == 0
        rig.settle()
        assert (log.next_seq, cursor.deferred_count) == (2, 1)


def test_a_record_for_one_cursor_is_done_with_for_the_others(tmp_path: Path) -> None:
    """Even when nobody reads there, and after a crash; not given by a paused log it waits."""
    with Rig(tmp_path / "a") as rig:
        log = rig.log()
        cursors = [log.open_cursor(name) for name in ("c", "b")]
        rig.publish(log, [b"1"])
        append(log, b"2", reply=b"c", flags=ADDRESSED)
        rig.publish(log, [b"3"])
        assert [cursor.depth for cursor in cursors] == [3, 2]
        log.pause()
        append(log, b"4", reply=b"c", flags=ADDRESSED)
        rig.settle()
        log.unpause()
        rig.settle()
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b") as rig:
        log = rig.engine.log("t")
        assert [log.cursors[name].depth for name in ("c", "b")] == [4, 3]
        consumers = [LocalConsumer(log.cursors[name], 9) for name in ("c", "b")]
        rig.settle()
        assert [bodies_of(consumer) for consumer in consumers] == [
            [b"1", b"2", b"3", b"4"],
            [b"1", b"3"],
        ]
        assert log.cursors["b"].depth == 0


def test_a_record_for_one_cursor(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        consumers = {name: LocalConsumer(log.open_cursor(name), 10) for name in ("c", "cc", "b")}
        rig.publish(log, [b"1"])
        append(log, b"2", reply=b"c", flags=ADDRESSED)
        rig.publish(log, [b"3"], not_before_ns=rig.turn.wall_ns + 10**9)
        append(log, b"4", reply=b"c", flags=ADDRESSED)
        rig.settle()
        rig.advance(2)
        assert {name: bodies_of(consumer) for name, consumer in consumers.items()} == {
            "c": [b"1", b"2", b"4", b"3"],
            "cc": [b"1", b"3"],
            "b": [b"1", b"3"],
        }
        for consumer in consumers.values():
            for seq in (1, 2, 3, 4):
                consumer.finish(seq)
        rig.settle()
        assert [cursor.acks.floor for cursor in log.cursors.values()] == [5, 5, 5]
        assert [cursor.depth for cursor in log.cursors.values()] == [0, 0, 0]
