"""Where a stream goes next: from where it is and what the brokers have to the end of a batch.

What happened to a log since the last batch is noticed here: it was trimmed beyond us, deleted, made
anew, or set back to an older state. `loss.lost` says whether that ends the query.
"""

from __future__ import annotations

from broker.spark.errors import DOWN, RECREATED, SHORTER, TRIMMED, VANISHED, BrokerDownError
from broker.spark.loss import lost
from broker.spark.offsets import Mark, Offsets, Place
from broker.spark.source.planning import Slice
from broker.spark.topics import Entry, Survey


def base(start: Offsets, survey: Survey, fail: bool) -> Offsets:
    """The places to read on from; topics that have appeared since are read from their earliest."""
    places = survey.earliest()
    for place, mark in start.items():
        entry = survey.entries.get(place)
        if entry is not None:
            places[place] = _begin(mark, entry, fail)
        elif not survey.knows(place):
            places[place] = mark  # its broker is down; it waits
        else:
            lost(VANISHED.format(**place._asdict(), start=mark.seq), fail)
    return places


def _begin(mark: Mark, entry: Entry, fail: bool) -> Mark:
    where = entry.place._asdict()
    if mark.inc != entry.inc:
        lost(RECREATED.format(**where, start=mark.seq), fail)
        return Mark(entry.first, entry.inc)
    if entry.next < mark.seq:
        lost(SHORTER.format(**where, next=entry.next, start=mark.seq), fail)
        return Mark(entry.next, entry.inc)
    if mark.seq < entry.first:
        lost(TRIMMED.format(**where, start=mark.seq, end=entry.first - 1), fail)
        return Mark(entry.first, entry.inc)
    return mark


def target(begin: Offsets, survey: Survey, frozen: Offsets | None = None) -> Offsets:
    """How far there is something to read; `frozen` is all that a query with an end may read."""
    ends: Offsets = {}
    for place, mark in begin.items():
        entry = survey.entries.get(place)
        if entry is None:
            ends[place] = mark
        elif frozen is None:
            ends[place] = Mark(entry.next, entry.inc)
        elif place not in frozen or frozen[place].inc != entry.inc:
            ends[place] = mark
        else:
            ends[place] = Mark(max(mark.seq, min(entry.next, frozen[place].seq)), entry.inc)
    return ends


def known(begin: Offsets, start: Offsets, frozen: Offsets | None) -> Offsets:
    """Without the topics that have appeared after a query with an end has begun."""
    if frozen is None:
        return begin
    return {place: mark for place, mark in begin.items() if place in start or place in frozen}


def slices(start: Offsets, end: Offsets, survey: Survey, fail: bool) -> list[Slice]:
    """What lies between two offsets, a range for each topic. Both may be of an earlier run."""
    ranges: list[Slice] = []
    for place, mark in end.items():
        entry = survey.entries.get(place)
        before = start.get(place)
        if before is not None and before.inc == mark.inc and before.seq >= mark.seq:
            continue
        if entry is None:
            _missing(place, before, mark, survey, fail)
        elif entry.inc != mark.inc:
            lost(RECREATED.format(**place._asdict(), start=mark.seq), fail)
        else:
            anew = before is None or before.inc != mark.inc
            begin = entry.first if anew or before is None else before.seq
            ranges.append(piece(entry, begin, mark.seq))
    return [one for one in ranges if one.start < one.end]


def _missing(place: Place, before: Mark | None, mark: Mark, survey: Survey, fail: bool) -> None:
    if not survey.knows(place):
        raise BrokerDownError(DOWN.format(servers="; ".join(survey.down)))
    start = mark.seq if before is None else before.seq
    lost(VANISHED.format(**place._asdict(), start=start), fail)


def piece(entry: Entry, start: int, end: int) -> Slice:
    return Slice(entry.place, entry.inc, start, end, entry.server, entry.broker, entry.record_bytes)
