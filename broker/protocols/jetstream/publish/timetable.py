"""The scheduled messages of a stream by their subjects, and which of them is due next."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from broker.protocols.jetstream.publish.schedules import Schedule

_STALE_MAX: Final = 64  # outdated entries that the heap may have in addition to one per subject
# Headers of a scheduled message that are not copied to the messages it publishes.
_SCHEDULE_HEADERS: Final = (
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
    """The schedules of a stream, at most one per subject. A later message on the subject replaces
    or removes it."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self._heap: list[tuple[int, bytes]] = []
        self._unadjusted: list[bytes] = []  # subjects, after the clock was set back

    def set(self, subject: bytes, seq: int, schedule: Schedule, due_ns: int) -> None:
        """Set the schedule of a subject: the message `seq` is due at this time."""
        self.entries[subject] = Entry(seq, due_ns, schedule)
        heapq.heappush(self._heap, (due_ns, subject))
        if len(self._heap) > 2 * len(self.entries) + _STALE_MAX:
            self._heap = [(entry.due_ns, key) for key, entry in self.entries.items()]
            heapq.heapify(self._heap)

    def drop(self, subject: bytes) -> None:
        """Remove the schedule of this subject."""
        self.entries.pop(subject, None)

    def adjust(self) -> None:
        """Compute the due times of all schedules again, because the clock was set back.
        `adjust_some` does it."""
        self._unadjusted = list(self.entries)

    @property
    def is_adjusting(self) -> bool:
        """Whether `adjust_some` has more to do."""
        return bool(self._unadjusted)

    def adjust_some(self, now_ns: int, most: int) -> None:
        """Adjust at most `most` schedules: one cron pattern takes up to 250 us."""
        for _ in range(min(most, len(self._unadjusted))):
            subject = self._unadjusted.pop()
            entry = self.entries.get(subject)
            if entry is not None:
                due_ns = entry.schedule.adjusted(entry.due_ns, now_ns)
                if due_ns != entry.due_ns:
                    self.set(subject, entry.seq, entry.schedule, due_ns)

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
        """Remove and return (subject, entry) of a message that is due; None: there is none."""
        due_ns = self.next_ns()
        if due_ns == 0 or due_ns > now_ns:
            return None
        _, subject = heapq.heappop(self._heap)
        return subject, self.entries.pop(subject)


def without_schedule(block: bytes) -> list[bytes]:
    """The header lines that a scheduled message passes on to the messages it publishes."""
    lines = block.split(b"\r\n")[1:] if block else []
    return [line for line in lines if line and not line.startswith(_SCHEDULE_HEADERS)]
