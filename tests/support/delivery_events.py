"""A reader of delivery events for tests, written from docs/guides/delivery-events.md."""

from __future__ import annotations

import struct
from typing import NamedTuple

HEAD = struct.Struct("<8sIIQI4x")
ROW = struct.Struct("<QqqHHHH")
KINDS = {1: "timeout", 2: "requeue", 3: "close", 4: "fin", 5: "dead"}
REASONS = ("returned", "timeout", "requeue", "close")


class Event(NamedTuple):
    topic: str
    channel: str
    seq: int
    attempt: int
    event: str
    latency_ns: int
    time_ns: int
    reason: str = ""


class Events(NamedTuple):
    """One record of the log."""

    events: list[Event]
    lost: int


def read_events(body: bytes) -> Events:
    magic, count, cursors, lost, names_bytes = HEAD.unpack_from(body)
    assert magic == b"TWEVENT1"
    place = HEAD.size + count * ROW.size
    assert len(body) == place + names_bytes
    names = []
    for _ in range(cursors):
        lengths = struct.unpack_from("<HH", body, place)
        place += 4
        pair = []
        for length in lengths:
            pair.append(body[place : place + length].decode())
            place += length
        names.append(tuple(pair))
    assert place == len(body)
    found = []
    for i in range(count):
        seq, latency, time, which, attempt, kind, reason = ROW.unpack_from(
            body, HEAD.size + i * ROW.size
        )
        assert reason == 0 or kind == 5
        text = REASONS[reason] if kind == 5 else ""
        found.append(Event(*names[which], seq, attempt, KINDS[kind], latency, time, text))
    return Events(found, lost)
