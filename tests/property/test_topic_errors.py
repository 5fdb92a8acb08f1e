"""A topic with channels whose file calls fail in any order, while its threads are now fast, now
slow.

What was answered with 'stored' is delivered to each channel that existed and has not finished it.
Nothing else is: not what was finished, emptied or refused, nor what is older than the channel. No
message comes before its time. The same holds after a kill.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.engine import SECOND, Rig, wait
from support.file_errors import GROUPS, disturb, recover, run_seeds

from broker.engine.cursor.cursor import cursors_of
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, outcome

NAME = "t"
CHANNELS = ("a", "b", "c")
EPHEMERAL = "e"
ACK_WAITS = (2, 10, 60)  # seconds
ACK_WAIT_MAX = 70
DELAYS = (0, 0, 0, 0, 1, 3, 12)
REQUEUE_DELAYS = (0, 0, 1, 5, 30)
LATEST = 130  # seconds: then nothing is in flight or deferred any more


@dataclass
class Message:
    """One append, whatever became of it."""

    seq: int
    ticket: int  # 0 = refused at once
    body: bytes
    due_ns: int  # of the wall clock, 0 = at once


@dataclass
class Consumer:
    """A consumer and the records that it has not answered for."""

    consumer: LocalConsumer
    held: set[int] = field(default_factory=set)


@dataclass
class Channel:
    """What a channel must not deliver any more."""

    start: int  # seq
    emptied: int = 0  # below this seq
    finished: set[int] = field(default_factory=set)
    put_off: dict[int, int] = field(default_factory=dict)  # seq -> ns of the monotonic clock
    paused: bool = False
    consumers: list[Consumer] = field(default_factory=list)


class Model:
    """Does things to a topic, and knows what its channels have to deliver."""

    def __init__(self, rng: random.Random, rig: Rig) -> None:
        self.rng = rng
        self.rig = rig
        self.count = 0
        self.begin()

    def begin(self) -> None:
        """A topic without messages and channels."""
        self.log = self.rig.log(NAME)
        self.messages: list[Message] = []
        self.channels: dict[str, Channel] = {}
        self.emptied: list[range] = []
        self.paused = False
        self.is_backlog_stored = True

    def cursor(self, name: str) -> Any:
        return cursors_of(self.log)[name]

    def result(self, message: Message) -> int:
        return outcome(self.log, message.ticket) if message.ticket else -1

    def delivers(self, channel: Channel, seq: int) -> bool:
        return (
            seq >= max(channel.start, channel.emptied)
            and seq not in channel.finished
            and not any(seq in seqs for seqs in self.emptied)
        )

    def expected(self, channel: Channel) -> list[bytes]:
        return [
            message.body
            for message in self.messages
            if self.result(message) == 1 and self.delivers(channel, message.seq)
        ]

    def collect(self) -> None:
        """Take what was delivered since the last call. Nothing was finished or emptied since."""
        now_ns, wall_ns = self.rig.loop.now_ns, self.rig.turn.wall_ns
        messages = {message.body: message for message in self.messages}
        for channel in self.channels.values():
            for each in channel.consumers:
                records, each.consumer.records = each.consumer.records, []
                for seq, _, _, body in records:
                    message = messages[body]
                    assert message.seq == seq
                    assert self.delivers(channel, seq)
                    assert message.due_ns <= wall_ns
                    assert channel.put_off.get(seq, 0) <= now_ns
                    each.held.add(seq)

    # --- what happens

    def step(self) -> None:
        self.collect()
        what = self.rng.random()
        if what < 0.3:
            self.publish()
        elif what < 0.6:
            disturb(self.rng, self.rig)
        elif what < 0.8:
            self.answer()
        elif what < 0.86:
            self.join_or_leave()
        elif what < 0.96:
            self.operate_channel()
        else:
            self.operate_topic()

    def append(self, body: bytes, due_ns: int = 0) -> None:
        seq = self.log.next_seq
        ticket = append(self.log, body, not_before_ns=due_ns)
        self.messages.append(Message(seq, ticket, body, due_ns))

    def publish(self) -> None:
        rng = self.rng
        delay = rng.choice(DELAYS)
        due_ns = self.rig.turn.wall_ns + delay * SECOND if delay else 0
        size = rng.choice((0, 50, 400))
        for _ in range(rng.choice((1, 1, 3, 20, 60))):
            self.count += 1
            self.append(b"%d:" % self.count + b"x" * size, due_ns)
        if rng.random() < 0.7:
            self.rig.loop.run()

    def answer(self) -> None:
        """A consumer finishes, requeues and touches some of its messages."""
        rng = self.rng
        found = [(c, each) for c in self.channels.values() for each in c.consumers]
        if not found:
            return
        channel, each = rng.choice(found)
        seqs = sorted(each.held)
        rng.shuffle(seqs)
        for seq in seqs[: rng.randrange(len(seqs) + 1)]:
            what = rng.random()
            if what > 0.9:
                each.consumer.touch(seq)
                continue
            each.held.discard(seq)
            delay = rng.choice(REQUEUE_DELAYS)
            if what < 0.7:
                if each.consumer.finish(seq) == 0:
                    channel.finished.add(seq)
            elif each.consumer.requeue(seq, delay) == 0:
                channel.put_off[seq] = self.rig.loop.now_ns + delay * SECOND
        if rng.random() < 0.5:
            self.rig.loop.run()

    def join(self, name: str) -> None:
        rng = self.rng
        credit, seconds = rng.choice((1, 5, 200, 1 << 20)), rng.choice(ACK_WAITS)
        consumer = LocalConsumer(self.cursor(name), credit, seconds, ACK_WAIT_MAX)
        self.channels[name].consumers.append(Consumer(consumer))

    def join_or_leave(self) -> None:
        rng = self.rng
        if not self.channels:
            return
        name = rng.choice(sorted(self.channels))
        channel = self.channels[name]
        if not channel.consumers or rng.random() < 0.6:
            self.join(name)
            return
        each = channel.consumers.pop(rng.randrange(len(channel.consumers)))
        each.consumer.leave(requeue=rng.random() < 0.6)
        if name == EPHEMERAL and not channel.consumers:
            assert name not in cursors_of(self.log)
            self.forget(name)

    def forget(self, name: str) -> None:
        """A channel is deleted."""
        del self.channels[name]
        if not self.channels:
            # After a kill, what an ephemeral channel had finished waits in the topic again.
            self.is_backlog_stored = name != EPHEMERAL

    def operate_channel(self) -> None:
        rng = self.rng
        free = [name for name in (*CHANNELS, EPHEMERAL) if name not in self.channels]
        if free and (not self.channels or rng.random() < 0.4):
            self.create(rng.choice(free))
            return
        name = rng.choice(sorted(self.channels))
        channel, cursor = self.channels[name], self.cursor(name)
        what = rng.choice(("delete", "empty", "pause", "unpause"))
        if what == "delete":
            try:
                self.log.delete_cursor(name)
            except OSError:
                assert name in cursors_of(self.log)
                return
            self.forget(name)
            return
        if what == "empty":
            channel.emptied = self.log.frontier
            cursor.empty()
            for each in channel.consumers:
                each.held.clear()
        else:
            channel.paused = what == "pause"
            cursor.pause() if channel.paused else cursor.unpause()
        try:
            wait(self.rig, cursor.synced())
        except OSError:
            return  # it is stored when the disk has recovered

    def create(self, name: str) -> None:
        start = self.log.backlog_seq
        try:
            self.log.open_cursor(name, ephemeral=name == EPHEMERAL)
        except OSError:
            assert name not in cursors_of(self.log)
            return
        self.channels[name] = Channel(start)
        if name == EPHEMERAL or self.rng.random() < 0.7:
            self.join(name)

    def operate_topic(self) -> None:
        what = self.rng.choice(("pause", "unpause", "empty", "delete"))
        if what == "empty":
            self.emptied.append(range(self.log.frontier, self.log.visible))
            self.log.empty()
        elif what == "delete":
            try:
                self.rig.engine.delete_log(NAME)
            except OSError:
                return
            self.begin()
        else:
            self.paused = what == "pause"
            self.log.pause() if self.paused else self.log.unpause()


def check(rig: Rig, log: Any, name: str, expected: list[bytes]) -> None:
    """The channel delivers these messages, each once."""
    cursor = cursors_of(log)[name]
    cursor.unpause()
    fresh = LocalConsumer(cursor, 1 << 20, 3600, 3600)
    rig.advance(LATEST)
    rig.advance(1)
    rig.until(lambda: not cursor.depth and not cursor.deferred_count)
    assert sorted(record[3] for record in fresh.records) == sorted(expected)


def check_killed(folder: Path, model: Model, engine: dict[str, Any]) -> None:
    lasting = {name: c for name, c in model.channels.items() if name != EPHEMERAL}
    with Rig(folder, clock=(model.rig.loop.now_ns, 0), **engine) as rig:
        log: Any = rig.engine.log(NAME)
        assert log.paused == model.paused
        assert set(cursors_of(log)) == set(lasting)
        if not model.channels and model.is_backlog_stored:
            assert log.backlog_seq == max(model.log.backlog_seq, log.first_seq)
        log.unpause()
        for name, channel in lasting.items():
            assert cursors_of(log)[name].paused == channel.paused
            check(rig, log, name, model.expected(channel))


def run(rng: random.Random, folder: Path) -> None:
    engine: dict[str, Any] = {
        "sync": rng.choice(("always", "none", 2.0)),
        "segment_bytes": rng.choice((4096, 20_000)),
        "inline_bytes": rng.choice((0, 0, 4096)),
        "journal_bytes_min": rng.choice((64, 512, 1 << 20)),
        "keep_bytes": rng.choice((0, 0, 1)),
        "short_bytes": rng.choice((0, 200)),
        "reclaim_bytes": rng.choice((128, 1 << 20)),
        "deferred_max": rng.choice((3, 20, 1 << 24)),
    }
    with Rig(folder / "a", **engine) as rig:
        model = Model(rng, rig)
        for _ in range(rng.randrange(10, 60)):
            model.step()
        model.collect()
        recover(rig)
        model.collect()
        assert 0 not in map(model.result, model.messages), "an append is not answered"
        model.append(b"end")
        rig.settle()
        assert model.result(model.messages[-1]) == 1, "it does not recover"
        for _ in range(3):
            rig.advance(1)
        model.collect()
        gone = shutil.ignore_patterns(".deleted*", "*.dropped")  # while they are copied, perhaps
        shutil.copytree(folder / "a", folder / "b", ignore=gone)  # as after kill -9
        check_killed(folder / "b", model, engine)
        model.log.unpause()
        for name, channel in model.channels.items():
            for each in channel.consumers[1:]:
                each.consumer.leave(requeue=True)
            expected = model.expected(channel)
            if channel.consumers:
                channel.consumers[0].consumer.set_credit(0)
            check(rig, model.log, name, expected)


@pytest.mark.parametrize("group", range(GROUPS))
def test_errors_in_any_order(group: int) -> None:
    run_seeds(group, run)
