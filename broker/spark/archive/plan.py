"""What a batch of the archive reads: from where the manifest ends to what the brokers have.

What happened to a log in between (trimmed, deleted, made anew, set back) is a gap: it ends the job
or is written down, as the option says. Nothing of it is ever passed over in silence.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.spark.archive.manifest import Change, Gap, Mark, Range, State
from broker.spark.jobs.errors import (
    DATA_LOSS,
    LOST_DELETED,
    LOST_RECREATED,
    LOST_SET_BACK,
    LOST_TRIMMED,
    JobError,
)
from broker.spark.offsets import Mark as Seq
from broker.spark.offsets import Offsets, Place
from broker.spark.options import Splitting, Wanted
from broker.spark.source.admission import admit_records
from broker.spark.source.planning import Slice, plan
from broker.spark.topics import Entry, Survey

TRIMMED: Final = "trimmed"
DELETED: Final = "deleted"
RECREATED: Final = "made anew"
SET_BACK: Final = "set back"
_TEXTS: Final = {
    TRIMMED: LOST_TRIMMED,
    DELETED: LOST_DELETED,
    RECREATED: LOST_RECREATED,
    SET_BACK: LOST_SET_BACK,
}


def said(gap: Gap) -> str:
    """A gap in words."""
    text = _TEXTS.get(
        gap.reason, "topic {topic} ({partition}): records {first} to {last} are {reason}"
    )
    return text.format(**gap._asdict(), last=gap.next - 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """What the tasks of one batch read; it is noted before they begin."""

    id: str
    tasks: tuple[tuple[Range, ...], ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        """At most: seqs have holes."""
        return sum(one.end - one.start for task in self.tasks for one in task)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Of all tasks and of what was trimmed before them, neighbours joined."""
        joined: list[Range] = []
        trimmed = [Range(*gap[:5]) for gap in self.gaps if gap.reason == TRIMMED]
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
        tasks = tuple(tuple(Range(*one) for one in task) for task in value["tasks"])
        return cls(value["id"], tasks, tuple(Gap(*gap) for gap in value["gaps"]))


@dataclass(frozen=True, slots=True)
class Start:
    """Where each topic is read on, and what is lost before that."""

    offsets: Offsets
    gaps: tuple[Gap, ...]


def left_alone(survey: Survey) -> Change:
    """The first version of an archive that begins with what comes from now on. It has to be written
    down: a run that found nothing new would else begin later than the one before it."""
    ranges = [Range(*place, e.inc, e.next, e.next) for place, e in survey.entries.items()]
    return Change("archive", ranges=tuple(sorted(ranges)))


def begin(state: State, survey: Survey, wanted: Wanted) -> Start:
    """After the last version. Topics that are new are read from their earliest record."""
    offsets: Offsets = {}
    gaps: list[Gap] = []
    for place, entry in survey.entries.items():
        mark = state.marks.get((place.topic, place.partition))
        seq = entry.first if mark is None else _go_on(place, mark, entry, gaps)
        offsets[place] = Seq(seq, entry.inc)
    for (topic, partition), mark in state.marks.items():
        place = Place(topic, partition)
        if wanted.has(*place) and place not in survey.entries and survey.knows(place):
            gaps.append(Gap(topic, partition, mark.inc, mark.seq, mark.seq, DELETED))
    known = {_told(gap) for gap in state.gaps}
    return Start(offsets, tuple(gap for gap in gaps if _told(gap) not in known))


def _told(gap: Gap) -> Gap:
    """A log that was set back grows again: that is not another gap."""
    return gap._replace(first=0) if gap.reason == SET_BACK else gap


def _go_on(place: Place, mark: Mark, entry: Entry, gaps: list[Gap]) -> int:
    if mark.inc != entry.inc:
        gaps.append(Gap(*place, mark.inc, mark.seq, mark.seq, RECREATED))
        return entry.first
    if entry.next < mark.seq:
        # What takes these seqs now would be a second record of the same offset.
        gaps.append(Gap(*place, mark.inc, entry.next, mark.seq, SET_BACK))
    elif mark.seq < entry.first:
        gaps.append(Gap(*place, mark.inc, mark.seq, entry.first, TRIMMED))
        return entry.first
    return mark.seq


def refuse(gaps: Iterable[Gap]) -> None:
    """End the job at the first of them."""
    for gap in gaps:
        raise JobError(DATA_LOSS.format(text=said(gap)))


def targets(start: Start, survey: Survey, frozen: Offsets | None) -> Offsets:
    """How far there is something to read; `frozen` is all that a run with an end may read."""
    ends: Offsets = {}
    for place, at in start.offsets.items():
        behind = survey.entries[place].next
        if frozen is not None:
            same = place in frozen and frozen[place].inc == at.inc
            behind = min(behind, frozen[place].seq) if same else at.seq
        ends[place] = Seq(max(at.seq, behind), at.inc)
    return ends


def next_batch(
    start: Start, target: Offsets, survey: Survey, most: int, splitting: Splitting
) -> Batch | None:
    """The next `most` records, shared out by what each topic has waiting; None: all is done."""
    end = admit_records(start.offsets, target, most)
    slices = [
        Slice(
            place, at.inc, start.offsets[place].seq, at.seq, entry.server, entry.broker,
            entry.record_bytes,
        )
        for place, at in end.items()
        if (entry := survey.entries[place]) and at.seq > start.offsets[place].seq
    ]  # fmt: skip
    tasks = tuple(
        tuple(Range(*one.place, one.inc, one.start, one.end) for one in task)
        for task in plan(slices, splitting)
    )
    if not tasks and not start.gaps:
        return None
    return Batch(secrets.token_hex(8), tasks, start.gaps)
