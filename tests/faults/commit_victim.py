"""Commits until it is killed at a given step, again and again in processes of its own.

    python tests/faults/commit_victim.py

Reads orders from standard input, a JSON object a line: `folder`, `kill` (the step before which the
process dies, -1 = never), `sync`, `what` ("stage" or "commit"), `cut` (into how many parts),
`consume` and `answers` (a file). For each it forks and prints the exit status. In `answers`, a
line each:

    {"seq": n, "body": text, "topic": t}      a consumer was given this and has acknowledged it
    {"synced": path, "size": n}               so much of a file is on the disk
    {"done": {...}}                           what the commit was answered with
    {"steps": n}                              how many there were
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.clients.upload import block  # noqa: E402
from support.engine import LIMITS  # noqa: E402

from broker.bulk import limits as limits_bulk  # noqa: E402
from broker.bulk.write import commits, intents, staging  # noqa: E402
from broker.bulk.write.service import Writes  # noqa: E402
from broker.bulk.write.staging import Bounds  # noqa: E402
from broker.engine.cursor.local import LocalConsumer  # noqa: E402
from broker.engine.engine import Engine  # noqa: E402
from broker.engine.log.publish import publish  # noqa: E402
from broker.routing.router import Router  # noqa: E402
from broker.runtime.turn import Turn  # noqa: E402

TOPICS = ("t", "u")
PARTS = 3
ROWS = 60
SMALL: dict[str, Any] = {"segment_bytes": 1 << 12, "journal_bytes_min": 1 << 13}


def rows(topic: str, part: int) -> list[bytes]:
    """What one task has for one topic."""
    return [b"%s %d %d %s" % (topic.encode(), part, n, b"." * (n % 90)) for n in range(ROWS)]


def cut_into(what: list[list[bytes]], pieces: int) -> list[list[bytes]]:
    """The same rows in other parts."""
    every = [row for part in what for row in part]
    return [every[piece::pieces] for piece in range(pieces)]


def sizes_of(folder: Path) -> dict[Path, int]:
    """Of a log's segments, and of the folder that it is in."""
    return {path: path.stat().st_size for path in [folder.parent, *folder.glob("*.seg")]}


class Victim:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.folder = Path(order["folder"])
        self.answers = os.open(order["answers"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.steps = 0
        limits_bulk.COMMIT_TURN_BYTES = 2000  # type: ignore[misc]
        for module in (intents, commits, staging):
            for name in ("replace_file", "remove_file", "sync_path", "write_at", "end_turn"):
                if hasattr(module, name):
                    self.watch(module, name)
        self.watch_logs()

    def tell(self, **what: object) -> None:
        os.write(self.answers, json.dumps(what).encode() + b"\n")

    def step(self) -> None:
        if self.steps == self.order["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1

    def watch_logs(self) -> None:
        """Logs sync their files themselves."""
        call = commits.sync_log

        async def synced(log: Any) -> None:
            self.step()
            sizes = sizes_of(Path(log.folder))
            await call(log)
            self.step()
            for path, size in sizes.items():
                self.tell(synced=str(path), size=size)

        commits.sync_log = synced  # type: ignore[attr-defined]

    def watch(self, module: Any, name: str) -> None:
        """Each call is a step."""
        call = getattr(module, name)

        def watched(*args: Any) -> Any:
            self.step()
            size = Path(os.fsdecode(args[0])).stat().st_size if name == "sync_path" else 0
            found = call(*args)
            if name == "sync_path" and not found:
                self.tell(synced=os.fsdecode(args[0]), size=size)
            return found

        setattr(module, name, watched)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        turn = Turn(loop.call_soon, lambda due, call: loop.call_at(due / 1e9, call))
        writes = Writes(self.folder, self.folder / "logs", Bounds(disk_reserve=0))
        writes.find_intents()
        policy = self.order["sync"]
        limits = replace(LIMITS, **SMALL)
        logs = str(self.folder / "logs")
        engine = Engine(turn, Router(), logs, limits, lambda _: policy, lambda *_, **__: None)
        engine.open(loop)
        await writes.start(engine)
        others = [asyncio.create_task(self.publish(engine, topic)) for topic in TOPICS]
        consumer = asyncio.create_task(self.consume(engine))
        await self.work(writes)
        for task in (*others, consumer):
            task.cancel()
        await writes.stop()
        await engine.close()

    async def work(self, writes: Writes) -> None:
        pieces = self.order["cut"]
        wanted: dict[str, list[tuple[int, str, int]]] = {}
        for topic in TOPICS:
            parts = cut_into([rows(topic, part) for part in range(PARTS)], pieces)
            for part, bodies in enumerate(parts):
                data, key = bytearray(block(bodies)), (topic, part, f"{pieces}")
                if self.order["what"] == "stage":
                    await writes.staging.stage("w", 1, key, 0, data)
                wanted.setdefault(topic, []).append((part, key[2], len(data)))
        if self.order["what"] == "commit":
            self.tell(done=await writes.commits.commit("w", 1, wanted))
        self.tell(steps=self.steps)

    async def publish(self, engine: Any, topic: str) -> None:
        """Somebody else, all the time."""
        log = engine.open_log(topic)
        log.open_cursor("c")
        number = 0
        while True:
            await publish(log, [b"other %d %d" % (os.getpid(), number)])
            number += 1

    async def consume(self, engine: Any) -> None:
        """Acknowledge at once what comes, so that segments go as soon as they may."""
        consumers = {t: LocalConsumer(engine.open_log(t).open_cursor("c"), 1000) for t in TOPICS}
        while self.order["consume"]:
            for topic, consumer in consumers.items():
                records, consumer.records = consumer.records, []
                for seq, _, _, body in records:
                    if not body.startswith(b"other"):
                        self.tell(topic=topic, seq=seq, body=body.decode())
                    consumer.finish(seq)
            await asyncio.sleep(0)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(Victim(json.loads(line)).run())
            except BaseException as problem:  # reported by the exit status
                print(repr(problem), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
