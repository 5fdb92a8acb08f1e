"""Cursors of a stream whose file calls fail in any order, while its threads are now fast, now slow.

A confirmed ack holds also after a kill, what was not acked is delivered again, nothing is passed
over, and a message is there as long as a cursor needs it.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.engine import SECOND, Rig
from support.file_errors import GROUPS, disturb, recover, run_seeds
from support.native.stores import publish, ticket
from support.native.streams import Receiver

from broker.engine.log.publish import outcome
from broker.engine.stream.cursor import StreamCursor, StreamCursors
from broker.engine.stream.store import StreamLimits, open_store

DONE = 2
SUBJECTS = (b"a.x", b"a.y", b"b.x", b"b")
FILTERS = {(): SUBJECTS, ("a.*",): SUBJECTS[:2], ("b",): SUBJECTS[3:], ("b.x",): SUBJECTS[2:3]}
SEPARATE: tuple[tuple[tuple[str, ...], ...], ...] = (((),), (("a.*",), ("b",), ("b.x",)))
ROUNDS_MAX = 300
QUIET_S = 6


@dataclass
class Client:
    """A cursor, and what its one client has received and acked."""

    name: str
    filters: tuple[str, ...]
    settings: dict[str, Any]
    receiver: Any = None
    got: set[int] = field(default_factory=set)  # seqs
    held: set[int] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)  # seq -> ticket

    def wants(self, subject: bytes) -> bool:
        return subject in FILTERS[self.filters]

    def take(self, room: int) -> None:
        self.receiver.room = room
        self.receiver.take()
        self.receiver.room = 0
        for seq, *_ in self.receiver.got():
            assert seq not in self.acked, f"{self.name} got {seq} after its ack"
            self.got.add(seq)
            self.held.add(seq)

    def ack(self, seq: int) -> None:
        """Also all before it, with that policy."""
        if self.settings["ack_policy"] == "all":
            seqs = {one for one in self.got - self.acked.keys() if one <= seq}
            done = self.receiver.ack_all(seq) == DONE
        else:
            seqs, done = {seq}, self.receiver.ack(seq) == DONE
        self.held -= seqs
        if done:
            self.acked.update(dict.fromkeys(seqs, self.receiver.take_ticket()))

    def confirmed(self) -> set[int]:
        reached = max(self.receiver.tickets, default=0)
        return {seq for seq, ticket in self.acked.items() if ticket <= reached}


class World:
    """A stream and its clients."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.retention = rng.choice(("limits", "interest", "workqueue"))
        filters = [rng.choice(tuple(FILTERS)) for _ in range(rng.choice((1, 2, 3)))]
        if self.retention == "workqueue":
            filters = list(rng.choice(SEPARATE))
        self.clients = [
            Client(
                f"c{number}",
                one,
                {
                    "ack_policy": rng.choice(("explicit", "explicit", "all")),
                    "ack_wait_ns": rng.choice((1, 3)) * SECOND,
                    "max_ack_pending": rng.choice((0, 0, 5, 40)),
                },
            )
            for number, one in enumerate(filters)
        ]
        self.engine: dict[str, Any] = {
            "sync": rng.choice(("always", "always", "none", 1.0)),
            "segment_bytes": rng.choice((4096, 20_000)),
            "inline_bytes": rng.choice((0, 0, 4096, 1 << 17)),
            "journal_bytes_min": rng.choice((64, 300)),
        }
        self.sent: list[tuple[int, int, bytes]] = []  # ticket, seq, subject

    def open(self, folder: Path, clock: tuple[int, int] | None = None) -> Rig:
        self.rig = Rig(folder / "logs", clock=clock, **self.engine)
        sync = self.engine["sync"]
        self.store = open_store(self.rig.engine, "js.A/S", StreamLimits(), sync=sync)
        among = StreamCursors(self.store, self.retention)
        for client in self.clients:
            journal = str(folder / f"{client.name}.cursor")
            cursor = StreamCursor(
                among, client.name, 1, journal=journal, filters=client.filters, **client.settings
            )
            client.receiver = Receiver(cursor, 0)
        among.sweep()
        return self.rig

    def publish(self, subject: bytes) -> None:
        seq = publish(self.store, subject, b"x" * self.rng.choice((0, 50, 300)))
        if seq:
            self.sent.append((ticket(self.store), seq, subject))

    def act(self) -> None:
        rng, client = self.rng, self.rng.choice(self.clients)
        client.take(rng.choice((0, 1, 3, 10, 60)))
        for seq in rng.sample(sorted(client.held), rng.randrange(len(client.held) + 1)):
            what = rng.random()
            if seq not in client.held:
                continue
            if what < 0.6:
                client.ack(seq)
            elif what < 0.8:
                client.receiver.nak(seq, rng.choice((0, 1, 2)) * SECOND)
            else:
                client.receiver.progress(seq)

    def step(self) -> None:
        what = self.rng.random()
        if what < 0.3:
            for _ in range(self.rng.choice((1, 1, 3, 40))):
                self.publish(self.rng.choice(SUBJECTS))
            self.rig.loop.run()
        elif what < 0.65:
            self.act()
        else:
            disturb(self.rng, self.rig)

    def stored(self) -> dict[int, bytes]:
        log = self.store.log
        return {seq: subject for one, seq, subject in self.sent if outcome(log, one) == 1}

    def check_kept(self, stored: dict[int, bytes]) -> None:
        for seq, subject in stored.items():
            needed = [c.name for c in self.clients if c.wants(subject) and seq not in c.acked]
            if self.retention == "limits" or needed:
                assert self.store.message(seq) is not None, f"{seq} is lost, {needed} need it"

    def finish(self, stored: dict[int, bytes], unsure: dict[str, set[int]]) -> None:
        """All that is left arrives, and can be acked. The unsure ones may come."""
        left = {
            c.name: {seq for seq, subject in stored.items() if c.wants(subject)} - unsure[c.name]
            for c in self.clients
        }
        quiet = 0  # seconds; those whose ack was lost come after their ack_wait
        for _ in range(ROUNDS_MAX):
            for client in self.clients:
                client.take(1 << 30)
                for seq in sorted(client.held):
                    client.ack(seq)
                left[client.name] -= client.acked.keys()
            quiet = 0 if any(left.values()) else quiet + 1
            if quiet > QUIET_S:
                break
            self.rig.advance(1)
        assert not any(left.values())
        for client in self.clients:
            assert client.confirmed() == client.acked.keys()
        for seq, subject in stored.items():
            if self.retention != "limits" and any(c.wants(subject) for c in self.clients):
                assert self.store.message(seq) is None, f"{seq} was not removed"


def run(rng: random.Random, folder: Path) -> None:
    world = World(rng)
    (folder / "a").mkdir()
    with world.open(folder / "a") as rig:
        for _ in range(rng.randrange(5, 50)):
            world.step()
        recover(rig)
        for subject in SUBJECTS:
            world.publish(subject)
        rig.settle()
        for _ in range(3):
            rig.advance(1)
        stored = world.stored()
        assert {seq for _, seq, _ in world.sent[-len(SUBJECTS) :]} <= stored.keys()
        for client in world.clients:
            client.take(0)
            assert client.confirmed() == client.acked.keys(), "an ack is not confirmed"
        world.check_kept(stored)
        world.act()
        rig.loop.run()
        shutil.copytree(folder / "a", folder / "b")  # as after kill -9
        unsure = {c.name: c.acked.keys() - c.confirmed() for c in world.clients}
        clock = (rig.loop.now_ns, rig.turn.wall_ns)
    for client in world.clients:
        client.held.clear()
        client.acked = dict.fromkeys(client.acked.keys(), 0)
    with world.open(folder / "b", clock):
        world.check_kept(stored)
        for client in world.clients:
            for seq in unsure[client.name]:  # its file may have the ack or not
                del client.acked[seq]
        world.finish(stored, unsure)


@pytest.mark.parametrize("group", range(GROUPS))
def test_errors_in_any_order(group: int) -> None:
    run_seeds(group, run)
