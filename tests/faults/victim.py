"""Publishes and consumes as fast as it can until it is killed, and tells what it was promised.

    python tests/faults/victim.py FOLDER SYNC SEED

On standard output, each a letter, a count as u32 and that many u64:

    S  records of the log `t` whose publish was acknowledged
    K  records of the log `kept` whose publish was acknowledged
    I  records that are about to be finished
    F  finished ones, with a publish begun and acknowledged after that
    D  pairs (seq, attempts) of deliveries, confirmed in the same way
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

from broker.engine.cursor.local import LocalConsumer  # noqa: E402
from broker.engine.engine import Engine  # noqa: E402
from broker.engine.log.publish import append, publish  # noqa: E402
from broker.routing.router import Router  # noqa: E402
from broker.runtime.turn import Turn  # noqa: E402

CREDIT = 2000
ACK_WAIT = 0.15
SMALL: dict[str, Any] = {
    "segment_bytes": 1 << 17,
    "journal_bytes_min": 1 << 13,
    "reclaim_bytes": 1 << 14,
    "load_bytes": 1 << 13,
}


def tell(kind: bytes, values: list[int]) -> None:
    data = kind + struct.pack("<I", len(values)) + array.array("Q", values).tobytes()
    while data:
        data = data[os.write(1, data) :]


def body_of(seq: int) -> bytes:
    return (b"%d." % seq) * (1 + seq % 13)


class Victim:
    def __init__(self, turn: Turn, engine: Any, rng: random.Random) -> None:
        self.turn = turn
        self.rng = rng
        self.log = engine.open_log("t")
        self.kept = engine.open_log("kept")
        self.kept.open_cursor("audit")
        self.consumer = LocalConsumer(self.log.open_cursor("c"), CREDIT, ACK_WAIT)
        self.finished: list[int] = []
        self.delivered: list[int] = []

    async def publish(self) -> None:
        before: tuple[list[int], list[int]] = ([], [])
        while True:
            # What happened before the last publish was begun is on file once this one is answered:
            # it was journalled when that turn ended.
            now = (self.finished, self.delivered)
            self.finished, self.delivered = [], []
            await self.run(self.log, b"S")
            if self.rng.random() < 0.1:
                await self.run(self.kept, b"K")
            tell(b"F", before[0])
            tell(b"D", before[1])
            before = now
            self.consume()
            if self.log.cursors["c"].depth > 5 * CREDIT:
                await asyncio.sleep(0.001)

    async def run(self, log: Any, kind: bytes) -> None:
        count = self.rng.choice((1, 1, 10, 100))
        first = log.next_seq
        bodies = [body_of(seq) for seq in range(first, first + count)]
        if self.rng.random() < 0.5:
            for body in bodies[:-1]:
                assert append(log, body)
                self.turn.start_early()  # as after each read of a connection
            del bodies[:-1]
        await publish(log, bodies)
        tell(kind, list(range(first, first + count)))

    def consume(self) -> None:
        records, self.consumer.records = self.consumer.records, []
        finish = []
        for seq, attempts, _, body in records:
            assert body == body_of(seq)
            self.delivered += (seq, attempts)
            draw = self.rng.random()
            if draw < 0.9:
                finish.append(seq)
            elif draw < 0.95:
                self.consumer.requeue(seq, self.rng.choice((0, 0.02, 0.2)))
        self.rng.shuffle(finish)
        tell(b"I", finish)
        self.finished += [seq for seq in finish if self.consumer.finish(seq) == 0]


async def main(folder: str, sync: str, seed: str) -> None:
    loop = asyncio.get_running_loop()
    turn = Turn(loop.call_soon, lambda due, call: loop.call_at(due / 1e9, call))
    rng = random.Random(seed)
    inline, longest = rng.choice(((0, 0), (1 << 17, 0), (1 << 9, 1 << 17)))
    limits = replace(LIMITS, **SMALL, inline_bytes=inline, inline_long_bytes=longest)
    engine = Engine(turn, Router(), folder, limits, lambda _name: sync, lambda *_, **__: None)
    engine.open(loop)
    assert engine.problems == [] or all("torn" in p or "at the end" in p for p in engine.problems)
    await Victim(turn, engine, rng).publish()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
