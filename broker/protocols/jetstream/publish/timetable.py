"""The scheduled messages of a stream by their subjects, and which of them is due next."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from broker.protocols.jetstream.publish.schedules import Schedule

_STALE: Final = 64  # entries of the heap that may be out of date
# Headers of a scheduled message that are not those of what it leads to.
_OWN: Final = (
    b"Nats-Schedule:",
    b"Nats-Schedule-",
    b"Nats-Scheduler:",
    b"Nats-Expected-",
    b"Nats-Msg-Id:",
    b"Nats-Rollup:",
    b"Nats-TTL:",
)


class Entry(NamedTuple):
    """A scheduled message."""

    seq: int
    due_ns: int  # wall clock
    schedule: Schedule


class Timetable:
    """At most one schedule per subject: a later message on the subject replaces or ends it."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self._heap: list[tuple[int, bytes]] = []

    def set(self, subject: bytes, seq: int, schedule: Schedule, due_ns: int) -> None:
        """The message `seq` is due at this time."""
        self.entries[subject] = Entry(seq, due_ns, schedule)
        heapq.heappush(self._heap, (due_ns, subject))
        if len(self._heap) > 2 * len(self.entries) + _STALE:
            self._heap = [(entry.due_ns, key) for key, entry in self.entries.items()]
            heapq.heapify(self._heap)

    def drop(self, subject: bytes) -> None:
        """Remove the schedule of this subject."""
        self.entries.pop(subject, None)

    def next_ns(self) -> int:
        """When the next message is due; 0 = there is none."""
        while self._heap:
            due_ns, subject = self._heap[0]
            entry = self.entries.get(subject)
            if entry is not None and entry.due_ns == due_ns:
                return due_ns
            heapq.heappop(self._heap)
        return 0

    def pop(self, now_ns: int) -> tuple[bytes, Entry] | None:
        """Remove and return a message that is due now; None: there is none."""
        due_ns = self.next_ns()
        if due_ns == 0 or due_ns > now_ns:
            return None
        _, subject = heapq.heappop(self._heap)
        return subject, self.entries.pop(subject)


def without_schedule(block: bytes) -> list[bytes]:
    """The header lines of the message that a scheduled message leads to."""
    lines = block.split(b"\r\n")[1:] if block else []
    return [line for line in lines if line and not line.startswith(_OWN)]
