"""Folders of an nsqd and of a NATS Streaming server to import: the same ones each time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from support import nsqd_folder
from support.stan import stores as stan_stores
from support.stan.stores import VERSION, message, put_identity, put_slice

from powercut.bodies import body_of

NSQD, STAN = "nsqd", "stan"
TOPIC, PLAIN, CHANNEL = "always.i", "always.j", "s.i"
OF_A, OF_B, OF_BOTH = range(20), range(50, 60), range(100, 130)
OF_PLAIN, OF_CHANNEL = range(40), range(60)
ACKED = range(1, 21)  # sequences that the durable has acknowledged; it was sent five more
DURABLE = "taken"


def place(kind: str, folder: Path) -> None:
    """Copy a source to the place of its import, unless it is there."""
    if folder.exists():
        return
    made = folder.with_name(f"{folder.name}.{os.getpid()}")
    made.mkdir(parents=True)
    (_nsqd if kind == NSQD else _stan)(made)
    try:
        made.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(made)


def _nsqd(folder: Path) -> None:
    topics: dict[str, dict[str, Any]] = {TOPIC: {"channels": ["a", "b"]}, PLAIN: {}}
    nsqd_folder.describe(folder, **topics)
    for name, topic, numbers in (
        (f"{TOPIC}:a", TOPIC, OF_A), (f"{TOPIC}:b", TOPIC, OF_B),
        (TOPIC, TOPIC, OF_BOTH), (PLAIN, PLAIN, OF_PLAIN),
    ):  # fmt: skip
        nsqd_folder.put(folder, name, *(nsqd_folder.record(body_of(topic, n)) for n in numbers))


def _stan(folder: Path) -> None:
    put_identity(folder)
    rows = [message(n + 1, CHANNEL, body_of(CHANNEL, n)) for n in OF_CHANNEL]
    put_slice(folder, CHANNEL, 1, rows)

    def record(kind: int, *fields: tuple[int, int | bytes]) -> bytes:
        data = b""
        for number, value in fields:
            if isinstance(value, int):
                data += bytes([number << 3, value])
            else:
                data += bytes([number << 3 | 2, len(value)]) + value
        return stan_stores.record(data, kind)

    sent = range(1, ACKED.stop + 5)
    story = [record(1, (1, 1), (2, b"me"), (8, DURABLE.encode()))]
    story += [record(5, (1, 1), (2, sequence)) for sequence in sent]
    story += [record(4, (1, 1), (2, sequence)) for sequence in ACKED]
    (folder / CHANNEL / "subs.dat").write_bytes(VERSION + b"".join(story))


def asked(kind: str) -> list[dict[str, Any]]:
    """Lines of a ledger: messages that an import may bring."""
    if kind == NSQD:
        return [
            {"e": "ask", "t": TOPIC, "n": [*OF_A, *OF_B, *OF_BOTH]},
            {"e": "ask", "t": PLAIN, "n": list(OF_PLAIN)},
        ]
    return [{"e": "ask", "t": CHANNEL, "n": list(OF_CHANNEL)}]


def answered(kind: str) -> list[dict[str, Any]]:
    """Lines of a ledger: messages that must exist after a finished import."""
    asks = asked(kind)
    stored = [{**ask, "e": "ok"} for ask in asks]
    if kind == NSQD:
        channels = [{"e": "chan", "t": TOPIC, "c": name} for name in "ab"]
        others = [
            {"e": "fin", "t": TOPIC, "c": "a", "n": list(OF_B)},
            {"e": "fin", "t": TOPIC, "c": "b", "n": list(OF_A)},
        ]
        own = {"e": "own", "t": TOPIC, "n": [*OF_A, *OF_B]}
        return [*channels, *asks, *stored, *others, own]
    durable = [
        {"e": "durable", "t": CHANNEL, "d": DURABLE},
        {"e": "sack", "t": CHANNEL, "d": DURABLE, "n": [sequence - 1 for sequence in ACKED]},
    ]
    return [*asks, *stored, *durable]
