"""What a cursor of a stream remembers, and when it answers that it does."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine import OPEN, SECOND, SYNC, SYNC_PATH, WRITE, Rig
from support.native.stores import kill, publish
from support.native.streams import Receiver

from broker.engine.stream.cursor import StreamCursor, StreamCursors
from broker.engine.stream.store import StreamLimits, open_store
from broker.runtime import vfs

DONE = 2
MANY = 1 << 30


class Durable:
    """A stream in files with one cursor; `again` opens what the files hold, as after kill -9."""

    def __init__(
        self,
        folder: Path,
        sync: str = "none",
        clock: int = SECOND,
        inline_bytes: int = 1 << 17,
        journal_bytes_min: int = 1 << 20,
        **more: Any,
    ) -> None:
        self.folder, self.sync = folder, sync
        self.more = {"ack_wait_ns": 10 * SECOND, **more}
        self.rig = Rig(
            folder / "logs",
            clock=(clock, clock),
            inline_bytes=inline_bytes,
            journal_bytes_min=journal_bytes_min,
        )
        self.store = open_store(self.rig.engine, "js A/s", StreamLimits(), sync=sync)
        self.all = StreamCursors(self.store)

    @property
    def path(self) -> Path:
        return self.folder / "c.cursor"

    def publish(self, *subjects: str) -> None:
        for subject in subjects:
            assert publish(self.store, subject.encode())
        self.rig.settle()

    def receiver(self, start: Any = 1, *, room: int = 1 << 40) -> Receiver:
        cursor = StreamCursor(self.all, "c", start, journal=str(self.path), **self.more)
        return Receiver(cursor, room)

    def again(self, **more: Any) -> Durable:
        self.rig.settle()
        folder = self.folder / "next"
        folder.mkdir()
        shutil.copy(self.path, folder / "c.cursor")
        clock = self.rig.loop.now_ns
        self.rig.crash(folder / "logs")
        return Durable(folder, self.sync, clock, **{**self.more, **more})


def open_files() -> set[str]:
    folder = Path("/proc/self/fd")
    return {os.path.realpath(file) for file in folder.iterdir()}


def seqs(receiver: Receiver) -> list[int]:
    return [delivery[0] for delivery in receiver.got()]


def test_what_is_in_flight_keeps_its_time_and_its_deliveries(tmp_path: Path) -> None:
    stream = Durable(tmp_path)
    stream.publish("a", "a", "a")
    receiver = stream.receiver()
    stream.rig.advance(10)
    receiver.ack(2)
    stream.rig.advance(4)
    stream = stream.again()
    receiver = stream.receiver(1)
    cursor = receiver.cursor
    assert (cursor.delivered, cursor.ack_floor) == ((6, 3), (0, 0))
    assert (cursor.num_ack_pending, cursor.num_redelivered, cursor.num_pending) == (2, 2, 0)
    stream.rig.advance(5.9)
    assert receiver.got() == []
    stream.rig.advance(0.1)
    assert [delivery[:3] for delivery in receiver.got()] == [(1, 3, 7), (3, 3, 8)]
    stream.rig.abandon()


def test_no_wait_is_longer_because_the_clock_was_set_back(tmp_path: Path) -> None:
    stream = Durable(tmp_path)
    now_ns, wall_ns = stream.rig.loop.now_ns, stream.rig.turn.wall_ns
    stream.rig.turn.set_clock(now_ns, wall_ns + 400 * 24 * 3600 * SECOND)
    stream.publish("a")
    receiver = stream.receiver()
    assert seqs(receiver) == [1]
    receiver.nak(1, 5 * SECOND)
    stream = stream.again()  # its wall clock is right
    receiver = stream.receiver()
    stream.rig.advance(4.9)
    assert seqs(receiver) == []
    stream.rig.advance(0.2)
    assert seqs(receiver) == [1]
    stream.rig.abandon()


def test_exhausted_messages_pauses_and_lists_are_remembered(tmp_path: Path) -> None:
    stream = Durable(tmp_path, max_deliver=1, ack_wait_ns=SECOND)
    stream.publish("a", "b", "c", "a")
    receiver = stream.receiver(lambda: list(stream.store.subjects.last_per_subject()), room=1)
    assert seqs(receiver) == [2]
    stream.rig.advance(1)
    assert receiver.exhausted_ones == [(2, 1)]
    receiver.cursor.pause_until(stream.rig.turn.wall_ns + 9 * SECOND)
    stream = stream.again()
    receiver = stream.receiver(lambda: 1 // 0)
    cursor = receiver.cursor
    assert (cursor.num_redelivered, cursor.num_pending, cursor.exhausted_count) == (1, 2, 1)
    stream.publish("c")
    assert seqs(receiver) == []
    stream.rig.advance(9)
    assert seqs(receiver) == [3, 4, 5]
    assert receiver.ack(2) == DONE
    stream.rig.advance(1)
    stream = stream.again()
    assert stream.receiver().cursor.exhausted_count == 3
    stream.rig.abandon()


def test_what_was_deleted_meanwhile_is_settled(tmp_path: Path) -> None:
    stream = Durable(tmp_path)
    stream.publish("a", "a", "a")
    receiver = stream.receiver()
    receiver.cursor.close()
    kill(stream.store, 1)
    stream = stream.again()
    receiver = stream.receiver()
    assert (receiver.cursor.num_ack_pending, receiver.cursor.ack_floor) == (2, (1, 1))
    stream.rig.abandon()


def test_a_cursor_is_not_ahead_of_a_stream_that_has_lost_its_end(tmp_path: Path) -> None:
    stream = Durable(tmp_path)
    stream.publish("a", "a")
    stream.receiver()
    stream.rig.settle()
    (tmp_path / "more").mkdir()
    shutil.copy(stream.path, tmp_path / "more" / "c.cursor")
    stream.rig.abandon()
    fresh = Durable(tmp_path / "more")
    receiver = fresh.receiver()
    assert (receiver.cursor.num_ack_pending, receiver.cursor.delivered) == (0, (2, 0))
    fresh.publish("a")
    assert seqs(receiver) == [1]
    fresh.rig.abandon()


@pytest.mark.parametrize("damage", [lambda _: b"", lambda _: b"x" * 40, lambda data: data[:30]])
def test_a_journal_that_does_not_read_is_begun_again(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    stream = Durable(tmp_path)
    stream.publish("a", "a")
    receiver = stream.receiver()
    receiver.ack(1)
    stream.rig.settle()
    stream.path.write_bytes(damage(stream.path.read_bytes()))
    stream = stream.again()
    receiver = stream.receiver(2)
    assert seqs(receiver) == [2]
    assert ("warning", "a journal does not read and is begun again") in [
        report[:2] for report in stream.rig.reports
    ]
    stream = stream.again()
    assert stream.receiver().cursor.delivered == (1, 2)
    stream.rig.abandon()


def test_the_end_of_a_journal_that_does_not_read_is_kept(tmp_path: Path) -> None:
    stream = Durable(tmp_path)
    stream.publish("a", "a")
    receiver = stream.receiver()
    receiver.ack(1)
    stream.rig.settle()
    good = stream.path.stat().st_size
    receiver.ack(2)
    stream.rig.settle()
    damaged = stream.path.read_bytes()[:-1]
    stream.path.write_bytes(damaged)
    stream = stream.again()
    receiver = stream.receiver()
    assert receiver.cursor.num_ack_pending == 1
    receiver.ack(2)
    stream.rig.settle()
    assert (stream.path.with_name(f"c.cursor.torn-{good}")).read_bytes() == damaged[good:]
    stream = stream.again()
    assert stream.receiver().cursor.num_ack_pending == 0
    stream.rig.abandon()


def test_each_journal_that_does_not_read_is_kept(tmp_path: Path) -> None:
    stream = Durable(tmp_path)
    stream.publish("a")
    for damage in (b"x" * 40, b"y" * 40):
        stream.path.write_bytes(damage)
        stream.receiver().cursor.close()
        stream.rig.settle()
    kept = {path.read_bytes() for path in tmp_path.glob("c.cursor.unreadable*")}
    assert kept == {b"x" * 40, b"y" * 40}
    stream.rig.abandon()


@pytest.mark.parametrize("inline_bytes", [0, 1 << 17])
def test_a_full_disk_is_tried_again_from_time_to_time(tmp_path: Path, inline_bytes: int) -> None:
    """Not as soon as a worker has found it full: each attempt writes the whole state."""
    stream = Durable(tmp_path, inline_bytes=inline_bytes)
    stream.publish("a", "a")
    receiver = stream.receiver()
    stream.rig.settle()
    vfs.fail(WRITE, errno.ENOSPC, times=MANY)
    receiver.ack(1)
    stream.rig.settle()
    stream.rig.advance(3)
    assert 0 < MANY - vfs.unfired(WRITE) < 10
    vfs.heal()
    stream.rig.advance(3)
    stream = stream.again()
    assert stream.receiver().cursor.num_ack_pending == 1
    stream.rig.abandon()


def test_an_ack_is_confirmed_once_it_is_on_the_disk(tmp_path: Path) -> None:
    stream = Durable(tmp_path, "always")
    stream.publish("a", "a", "a")
    receiver = stream.receiver()
    stream.rig.settle()
    vfs.hold(SYNC)
    receiver.ack(1)
    first = receiver.take_ticket()
    receiver.ack(2)
    second = receiver.take_ticket()
    assert 0 < first <= second
    stream.rig.until(lambda: vfs.held(SYNC) > 0)
    assert receiver.tickets == []
    vfs.release(SYNC)
    stream.rig.settle()
    stream.rig.until(lambda: receiver.tickets != [])
    assert receiver.tickets[-1] >= second
    assert receiver.take_ticket() == 0
    vfs.heal()
    stream.rig.abandon()


def test_acks_of_one_turn_share_a_write_and_a_sync(tmp_path: Path) -> None:
    stream = Durable(tmp_path, "always")
    stream.publish(*["a"] * 100)
    receiver = stream.receiver()
    stream.rig.settle()
    journal = receiver.cursor.journal
    written, synced = journal.handed, stream.rig.engine.shared.syncs
    for seq in range(1, 101):
        receiver.ack(seq)
        assert receiver.take_ticket()
    stream.rig.until(lambda: receiver.tickets != [])
    assert (journal.handed - written, len(receiver.tickets)) == (1, 1)
    assert stream.rig.engine.shared.syncs == synced  # of logs
    stream.rig.abandon()


def test_a_failed_write_delays_the_confirmation_until_the_state_is_saved(tmp_path: Path) -> None:
    stream = Durable(tmp_path, "always")
    stream.publish("a", "a")
    receiver = stream.receiver()
    stream.rig.settle()
    vfs.fail(WRITE, errno.ENOSPC, 1, 3)
    receiver.ack(1)
    assert receiver.take_ticket()
    stream.rig.loop.run()
    assert receiver.tickets == []
    vfs.heal()
    stream.rig.advance(2)
    stream.rig.until(lambda: receiver.tickets != [])
    stream = stream.again()
    assert stream.receiver().cursor.ack_floor == (1, 1)
    stream.rig.abandon()


@pytest.mark.parametrize("call", [SYNC, SYNC_PATH])
def test_a_failed_sync_delays_the_confirmation(tmp_path: Path, call: int) -> None:
    stream = Durable(tmp_path, "always")
    stream.publish("a", "a")
    receiver = stream.receiver()
    vfs.fail(call, errno.EIO)
    receiver.ack(1)
    assert receiver.take_ticket()
    stream.rig.settle()
    stream.rig.advance(2)
    stream.rig.until(lambda: receiver.tickets != [])
    assert not vfs.unfired(call)
    vfs.heal()
    stream.rig.abandon()


def test_an_ack_is_not_confirmed_while_a_long_journal_cannot_be_written_anew(
    tmp_path: Path,
) -> None:
    """All that was reported before is safe: the next file must be waited for."""
    stream = Durable(tmp_path, journal_bytes_min=1)
    stream.publish(*["a"] * 99)
    receiver = stream.receiver()
    cursor, rig = receiver.cursor, stream.rig
    for seq in range(1, 90):
        vfs.heal()
        assert receiver.ack(seq) == DONE
        ticket = receiver.take_ticket()
        rig.settle()
        assert ticket <= max(receiver.tickets)
        vfs.fail(OPEN, errno.EMFILE, 0, MANY)
        cursor.update(ack_wait_ns=10 * SECOND)  # the journal has nothing to write
        rig.settle()
        if rig.reports:
            break
    assert rig.reports
    assert receiver.ack(95) == DONE
    ticket = receiver.take_ticket()
    rig.settle()
    assert ticket > max(receiver.tickets)
    with pytest.raises(OSError, match="many open files"):
        asyncio.run(cursor.synced())
    vfs.heal()
    rig.advance(2)
    rig.until(lambda: max(receiver.tickets) >= ticket)
    stream = stream.again()
    assert stream.receiver().pending(95) is None
    stream.rig.abandon()


def test_without_syncs_the_file_is_enough_and_without_a_journal_nothing_is_waited_for(
    tmp_path: Path,
) -> None:
    stream = Durable(tmp_path)
    stream.publish("a")
    receiver = stream.receiver()
    receiver.ack(1)
    assert receiver.take_ticket()
    stream.rig.settle()
    assert len(receiver.tickets) == 1
    memory = Receiver(StreamCursor(stream.all, "memory", 1))
    assert memory.ack(1) == DONE
    assert memory.take_ticket() == 0
    assert not (tmp_path / "memory.cursor").exists()
    stream.rig.abandon()


def test_a_new_cursor_is_waited_for(tmp_path: Path) -> None:
    stream = Durable(tmp_path, "always")
    stream.publish("a")
    receiver = stream.receiver()

    async def made() -> None:
        task = asyncio.ensure_future(receiver.cursor.synced())
        while not task.done():
            stream.rig.loop.serve(1)
            stream.rig.loop.run()
            await asyncio.sleep(0)
        await task

    asyncio.run(made())
    assert receiver.take_ticket() == 0
    stream.rig.abandon()


def test_an_idle_cursor_keeps_no_file_open(tmp_path: Path) -> None:
    stream = Durable(tmp_path, "always")
    stream.publish("a", "a")
    receiver = stream.receiver()
    receiver.ack(1)
    stream.rig.settle()
    assert str(stream.path) in open_files()
    for _ in range(4):
        stream.rig.advance(1)
    assert str(stream.path) not in open_files()
    receiver.ack(2)
    stream.rig.settle()
    stream = stream.again()
    assert stream.receiver().cursor.num_ack_pending == 0
    stream.rig.abandon()


def test_a_journal_is_written_anew_when_it_is_long(tmp_path: Path) -> None:
    stream = Durable(tmp_path)
    stream.rig.engine.shared.journal_bytes_min = 1000
    receiver = stream.receiver()
    for _ in range(300):
        stream.publish("a")
        receiver.ack(stream.store.last_seq)
    stream.rig.settle()
    assert stream.path.stat().st_size < 2000
    stream = stream.again()
    cursor = stream.receiver().cursor
    assert cursor.delivered == cursor.ack_floor == (300, 300)
    stream.rig.abandon()


def test_a_deleted_cursor_leaves_no_file(tmp_path: Path) -> None:
    stream = Durable(tmp_path)
    receiver = stream.receiver()
    assert stream.path.exists()
    receiver.cursor.close(True)
    assert not stream.path.exists()
    stream.rig.abandon()
