"""Appends to a stream, deletes and purges until it is killed, and reports what was answered.

    python tests/faults/stream_victim.py FOLDER SEED

On standard output, each a letter, a count as u32 and that many u64:

    S  seqs of messages that are safe
    G  seqs of messages that are about to be deleted
    D  seqs of messages whose deletion was answered
    L  the last seq of a subject that has a limit of one message, when it was safe
"""

from __future__ import annotations

import array
import asyncio
import os
import random
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.engine import LIMITS  # noqa: E402
from support.native.stores import outcome, publish  # noqa: E402

from broker.engine.engine import Engine  # noqa: E402
from broker.engine.stream.store import StreamLimits, StreamStore, open_store  # noqa: E402
from broker.routing.router import Router  # noqa: E402
from broker.runtime.turn import Turn  # noqa: E402

SMALL: dict[str, Any] = {"segment_bytes": 1 << 14, "journal_bytes_min": 1 << 10}
MANY, ONE = "js A/MANY", "js A/ONE"  # the second has a limit of one message for each subject
PURGED = 40


def report(kind: bytes, values: list[int]) -> None:
    data = kind + struct.pack("<I", len(values)) + array.array("Q", values).tobytes()
    while data:
        data = data[os.write(1, data) :]


def body_of(seq: int) -> bytes:
    return (b"%d." % seq) * (1 + seq % 13)


class Victim:
    def __init__(self, turn: Turn, many: StreamStore, one: StreamStore, rng: random.Random) -> None:
        self.turn = turn
        self.many = many
        self.one = one
        self.rng = rng
        self.live = [seq for seq in range(many.first_seq, many.last_seq + 1) if many.message(seq)]

    async def run(self) -> None:
        while True:
            await self.append()
            draw = self.rng.random()
            if draw < 0.4 and self.live:
                await self.delete()
            elif draw < 0.5:
                await self.purge()
            await self.replace()

    async def append(self) -> None:
        seqs = []
        for _ in range(self.rng.choice((1, 1, 10, 100))):
            seqs.append(self.append_one())
            self.turn.start_early()  # as after each read of a connection
        await self.many.settle()
        assert outcome(self.many) == 1
        self.live += seqs
        report(b"S", seqs)

    def append_one(self) -> int:
        seq = self.many.log.next_seq
        assert publish(self.many, b"s.%d" % (seq % 5), body_of(seq)) == seq
        return seq

    async def delete(self) -> None:
        seq = self.live.pop(self.rng.randrange(len(self.live)))
        report(b"G", [seq])
        assert await self.many.delete(seq, self.rng.random() < 0.3)
        report(b"D", [seq])

    async def purge(self) -> None:
        subject = self.rng.randrange(5)
        gone = [seq for seq in self.live if seq % 5 == subject][:PURGED]
        if not gone:
            return
        report(b"G", gone)
        assert await self.many.purge(f"s.{subject}", seq=gone[-1] + 1) == len(gone)
        self.live = [seq for seq in self.live if seq not in set(gone)]
        report(b"D", gone)

    async def replace(self) -> None:
        seq = publish(self.one, b"s.%d" % self.rng.randrange(3), b"x")
        await self.one.settle()
        assert outcome(self.one) == 1
        report(b"L", [seq])


async def main(folder: str, seed: str) -> None:
    loop = asyncio.get_running_loop()
    turn = Turn(loop.call_soon, lambda due, call: loop.call_at(due / 1e9, call))
    rng = random.Random(seed)
    inline, longest = rng.choice(((0, 0), (1 << 17, 0), (1 << 9, 1 << 17)))
    limits = replace(LIMITS, **SMALL, inline_bytes=inline, inline_long_bytes=longest)
    engine = Engine(turn, Router(), folder, limits, lambda _name: "always", lambda *_, **__: None)
    engine.open(loop)
    assert all("torn" in problem for problem in engine.problems)
    many = open_store(engine, MANY, StreamLimits())
    one = open_store(engine, ONE, StreamLimits(max_msgs_per_subject=1))
    await Victim(turn, many, one, rng).run()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
