"""Plans a batch of the archive: the ranges from the end of the manifest to the end of the logs.

A log that was trimmed, deleted, recreated or truncated since the last batch leaves a gap. A gap
ends the job or is recorded in the manifest, as the option says; it is never ignored.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.spark.archive.manifest import Change, Gap, State
from broker.spark.jobs.errors import (
    DATA_LOSS,
    LOST_DELETED,
    LOST_RECREATED,
    LOST_SET_BACK,
    LOST_TRIMMED,
    JobError,
)
from broker.spark.offsets import Offset, OffsetRange, Offsets, TopicPartition
from broker.spark.options import Splitting, Wanted
from broker.spark.source.microbatch import admit_records
from broker.spark.source.planning import plan
from broker.spark.topics import Entry, Survey

TRIMMED: Final = "trimmed"
DELETED: Final = "deleted"
RECREATED: Final = "made anew"  # these texts are in manifests on disk
SET_BACK: Final = "set back"
_TEXTS: Final = {
    TRIMMED: LOST_TRIMMED,
    DELETED: LOST_DELETED,
    RECREATED: LOST_RECREATED,
    SET_BACK: LOST_SET_BACK,
}


def gap_text(gap: Gap) -> str:
    """A gap as a line of text."""
    text = _TEXTS.get(
        gap.reason, "topic {topic} ({partition}): records {first} to {last} are {reason}"
    )
    return text.format(**gap._asdict(), last=gap.next - 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """The ranges that the tasks of one batch read; stored before the tasks begin."""

    id: str
    tasks: tuple[tuple[OffsetRange, ...], ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        """The largest possible number of records: seqs have gaps."""
        return sum(one.end - one.start for task in self.tasks for one in task)

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges of all tasks and those trimmed before them, adjacent ones joined."""
        joined: list[OffsetRange] = []
        trimmed = [OffsetRange(*gap[:5]) for gap in self.gaps if gap.reason == TRIMMED]
        for one in sorted([*trimmed, *(one for task in self.tasks for one in task)]):
            if joined and joined[-1][:3] == one[:3] and joined[-1].end == one.start:
                joined[-1] = joined[-1]._replace(end=one.end)
            else:
                joined.append(one)
        return tuple(joined)

    def to_json(self) -> dict[str, Any]:
        tasks = [[list(one) for one in task] for task in self.tasks]
        return {"id": self.id, "tasks": tasks, "gaps": [list(gap) for gap in self.gaps]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Batch:
        tasks = tuple(tuple(OffsetRange(*one) for one in task) for task in value["tasks"])
        return cls(value["id"], tasks, tuple(Gap(*gap) for gap in value["gaps"]))


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading continues in each topic, and the gaps before that."""

    offsets: Offsets
    gaps: tuple[Gap, ...]


def starting_change(survey: Survey) -> Change:
    """The first version of an archive that begins at the current ends of the logs. It is stored at
    once; otherwise, if the first run stores no records, the second would begin at later ends."""
    ranges = [entry.read(entry.next, entry.next).range for entry in survey.entries.values()]
    return Change("archive", ranges=tuple(sorted(ranges)))


def begin(state: State, survey: Survey, wanted: Wanted) -> Start:
    """Where to continue after the last version; new topics are read from their earliest record."""
    offsets: Offsets = {}
    gaps: list[Gap] = []
    for tp, entry in survey.entries.items():
        at = state.offsets.get(tp)
        offsets[tp] = entry.offset(entry.first if at is None else _next_seq(tp, at, entry, gaps))
    for tp, at in state.offsets.items():
        if wanted.has(*tp) and tp not in survey.entries and survey.knows(tp):
            gaps.append(Gap(*tp, at.incarnation, at.seq, at.seq, DELETED))
    known = {_identity(gap) for gap in state.gaps}
    return Start(offsets, tuple(gap for gap in gaps if _identity(gap) not in known))


def _identity(gap: Gap) -> Gap:
    """The identity of a gap. A truncated log grows again, which is not another gap."""
    return gap._replace(first=0) if gap.reason == SET_BACK else gap


def _next_seq(tp: TopicPartition, at: Offset, entry: Entry, gaps: list[Gap]) -> int:
    """The first seq to archive; lost records before it are added to `gaps`."""
    if at.incarnation != entry.incarnation:
        gaps.append(Gap(*tp, at.incarnation, at.seq, at.seq, RECREATED))
        return entry.first
    if entry.next < at.seq:
        # Records that use these seqs now would be a second version of archived offsets.
        gaps.append(Gap(*tp, at.incarnation, entry.next, at.seq, SET_BACK))
    elif at.seq < entry.first:
        if not entry.stream:
            gaps.append(Gap(*tp, at.incarnation, at.seq, entry.first, TRIMMED))
        return entry.first
    return at.seq


def refuse(gaps: Iterable[Gap]) -> None:
    """Raise JobError for the first gap."""
    for gap in gaps:
        raise JobError(DATA_LOSS.format(text=gap_text(gap)))


def targets(start: Start, survey: Survey, frozen: Offsets | None) -> Offsets:
    """The end of the readable records; `frozen` is the limit of a run with --once."""
    ends: Offsets = {}
    for tp, at in start.offsets.items():
        end = survey.entries[tp].next
        if frozen is not None:
            same_log = tp in frozen and frozen[tp].incarnation == at.incarnation
            end = min(end, frozen[tp].seq) if same_log else at.seq
        ends[tp] = Offset(max(at.seq, end), at.incarnation)
    return ends


def next_batch(
    start: Start, target: Offsets, survey: Survey, limit: int, splitting: Splitting
) -> Batch | None:
    """The next `limit` records, divided in proportion to each topic's backlog; None if no records
    are left."""
    end = admit_records(start.offsets, target, limit)
    ranges = [
        survey.entries[tp].read(start.offsets[tp].seq, at.seq)
        for tp, at in end.items()
        if at.seq > start.offsets[tp].seq
    ]
    tasks = tuple(tuple(one.range for one in task) for task in plan(ranges, splitting))
    if not tasks and not start.gaps:
        return None
    return Batch(secrets.token_hex(8), tasks, start.gaps)
