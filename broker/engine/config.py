"""The section of delivery events."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.base import settings as kinds
from broker import limits
from broker.engine import limits as limits_events


@dataclass(frozen=True)
class EventsConfig:
    """[events]: a log of what became of each delivery; for analyses, off unless it has a name."""

    topic: str = field(default="", metadata={"kind": kinds.text(kinds.check_topic)})
    linger_ns: int = field(
        default=limits_events.EVENTS_LINGER,
        metadata={"kind": kinds.duration(0, limits_events.EVENTS_LINGER_MAX, off=True)},
    )
    max_age_ns: int = field(
        default=limits_events.EVENTS_MAX_AGE,
        metadata={"kind": kinds.duration(limits.MS, limits.DURATION_MAX, off=True)},
    )
    max_bytes: int = field(
        default=limits_events.EVENTS_MAX_BYTES, metadata={"kind": kinds.size(0, limits.COUNT_MAX)}
    )

    def kept(self, name: str) -> tuple[int, int, int, int, int] | None:
        """What a log keeps, in the engine's words, if it is the one of these events."""
        return (self.max_age_ns, self.max_bytes, 0, 0, 0) if name == self.topic else None
