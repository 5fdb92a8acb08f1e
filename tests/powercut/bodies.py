"""Bodies of messages in the recordings: each is unique and contains its number."""

from __future__ import annotations

LANE = 100_000  # numbers of one publisher; in order within it


def body_of(topic: str, number: int) -> bytes:
    """The body of a message; each is unique."""
    return b"%s|%d|" % (topic.encode(), number) + b"x" * (number * 37 % 150)


def number_of(topic: str, body: bytes) -> int | None:
    """The number of a message in its topic; None if this is not a complete body."""
    parts = body.split(b"|", 2)
    if len(parts) != 3 or parts[0] != topic.encode() or not parts[1].isdigit():
        return None
    number = int(parts[1])
    return number if body == body_of(topic, number) else None
