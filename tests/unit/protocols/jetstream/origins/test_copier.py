"""What another server delivers, when the disk fails while more comes: nothing is acked that is not
stored, and nothing is left out."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import SYNC, WRITE, Rig
from support.streams import StreamCase, get

from broker.protocols.jetstream.origins.copier import Copier
from broker.protocols.jetstream.origins.receiver import Receiver
from broker.protocols.jetstream.structs import StreamSource
from broker.runtime import vfs

MIRROR = pytest.mark.parametrize("mirrors", [True, False], ids=["mirror", "source"])
FLOW = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


@pytest.fixture(autouse=True)
def _heal() -> Iterator[None]:
    yield
    vfs.heal()


class Origin:
    """Delivers the messages of a stream W, and hears up to which one they are acked."""

    def __init__(self, rig: Rig, *, mirrors: bool) -> None:
        self.rig = rig
        self.case = StreamCase(rig)
        self.stream = self.case.make(subjects=[] if mirrors else ["s.>"])
        self.copier = Copier(self.stream, StreamSource(name="W"), 0, mirrors)
        self.copier.remote = True
        self.acked: list[int] = []
        self.case.account.listen(b"fc", lambda m: self.acked.append(int(m.headers.split()[-1])))
        self.listen(0)

    def listen(self, after: int) -> None:
        """As the first consumer, or a new one."""
        self.seq, self.delivered = after, 0
        self.receiver = Receiver(self.copier, b"to", lambda: None)
        self.receiver.open()

    def deliver(self, count: int, *, early: bool = False) -> None:
        for _ in range(count):
            self.seq += 1
            self.delivered += 1
            place = (self.seq, self.delivered, 10**18 + self.seq)
            body = b"m%d" % self.seq
            self.case.account.publish(b"to", body, b"$JS.ACK.W.own.1.%d.%d.%d.0" % place)
            if early:
                self.rig.turn.start_early()

    def ask(self) -> None:
        self.case.account.publish(b"to", b"", b"fc", FLOW)

    def settle(self) -> None:
        self.rig.settle()
        self.rig.advance(2)

    def finish(self, last: int) -> None:
        """Deliver the rest, and have it acked."""
        self.go_on()
        self.deliver(last - self.seq)
        self.ask()
        self.settle()
        assert self.acked == [last]

    def go_on(self) -> None:
        """As RemoteOrigin does once all is settled: behind what is stored."""
        assert self.copier.is_lost
        assert not self.copier.pending
        self.receiver.close()
        self.listen(self.copier.restart())
        assert self.seq == self.copier.stored_to

    def stored(self) -> list[bytes]:
        last = self.stream.store.last_seq
        found = [get(self.stream, seq=seq) for seq in range(1, last + 1)]
        return [message[3] for message in found if message]

    def close(self) -> None:
        self.receiver.close()
        self.copier.close()


def bodies(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(1, count + 1)]


def sync_ends(rig: Rig) -> None:
    """In the middle of a turn: its end comes later."""
    syncs = rig.engine.shared.syncer.reaped
    while rig.engine.shared.syncer.reaped == syncs:
        rig.loop.serve(2000)


@MIRROR
@pytest.mark.parametrize("early", [True, False])
def test_a_sync_fails_and_more_comes_before_the_turn_ends(
    tmp_path: Path, mirrors: bool, early: bool
) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        origin = Origin(rig, mirrors=mirrors)
        origin.deliver(100)
        rig.settle()
        vfs.fail(SYNC, errno.EIO)
        origin.deliver(50, early=early)
        if not early:
            rig.loop.run()
        assert origin.stream.store.log.sync.under_way
        sync_ends(rig)
        vfs.heal()
        origin.deliver(10)
        origin.ask()
        origin.settle()
        assert origin.acked == []
        assert origin.copier.stored_to == 100
        origin.finish(180)
        assert origin.stored() == bodies(180)
        origin.close()


@MIRROR
def test_a_write_fails_beside_a_sync_that_succeeds(tmp_path: Path, mirrors: bool) -> None:
    """What the sync covers is kept, and is not asked for again."""
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        origin = Origin(rig, mirrors=mirrors)
        origin.deliver(100)
        rig.settle()
        origin.deliver(50, early=True)
        assert origin.stream.store.log.sync.under_way
        vfs.fail(WRITE, errno.EIO)
        origin.deliver(10)
        rig.loop.run()
        vfs.heal()
        origin.ask()
        origin.settle()
        assert origin.acked == []
        assert origin.copier.stored_to == 150
        origin.finish(180)
        assert origin.stored() == bodies(180)
        origin.close()


def test_a_publisher_of_the_target_is_answered_for_itself_alone(tmp_path: Path) -> None:
    """Its message is stored after those that a failed sync has refused."""
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        origin = Origin(rig, mirrors=False)
        origin.deliver(100)
        rig.settle()
        vfs.fail(SYNC, errno.EIO)
        origin.deliver(50, early=True)
        sync_ends(rig)
        vfs.heal()
        origin.case.send("s.x", b"own", "reply.1")
        origin.ask()
        origin.settle()
        assert len(origin.case.answers) == 1
        assert origin.acked == []
        assert origin.copier.stored_to == 100
        origin.finish(150)
        assert origin.stored() == [*bodies(100), b"own", *bodies(150)[100:]]
        origin.close()
