"""What messages of the recorded brokers say: each says something else, and tells its number."""

from __future__ import annotations

LANE = 100_000  # numbers of one publisher; in order within it


def body_of(topic: str, number: int) -> bytes:
    """What a message says: nobody else says the same."""
    return b"%s|%d|" % (topic.encode(), number) + b"x" * (number * 37 % 150)


def number_of(topic: str, body: bytes) -> int | None:
    """Which message of a topic this is; None when it is none, or not all of one."""
    parts = body.split(b"|", 2)
    if len(parts) != 3 or parts[0] != topic.encode() or not parts[1].isdigit():
        return None
    number = int(parts[1])
    return number if body == body_of(topic, number) else None
