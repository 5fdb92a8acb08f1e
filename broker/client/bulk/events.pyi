"""Records of delivery events as buffers of Arrow columns."""

from typing import Any, Final, final

EVENTS: Final[tuple[str, ...]]
DEAD_REASONS: Final[tuple[str, ...]]

@final
class EventColumns:
    rows: int
    names: list[tuple[str, str]]
    foreign: int
    bad: int
    cursor: bytes
    seq: bytes
    attempt: bytes
    event: bytes
    reason: bytes
    latency: bytes
    latency_known: bytes
    time: bytes

def decode(offsets: Any, data: Any, start: int, count: int) -> EventColumns: ...
