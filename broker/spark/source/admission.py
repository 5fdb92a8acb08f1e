"""How much of the backlog a trigger takes: shared out among the topics by what each has waiting."""

from __future__ import annotations

from collections.abc import Mapping

from broker.spark.offsets import Mark, Offsets, Place
from broker.spark.topics import Survey


def share(backlog: Mapping[Place, int], limit: int) -> dict[Place, int]:
    """`limit` in parts that are in proportion to `backlog`, each at least 1 while it lasts.

    The sum is the limit, or all there is. Where the limit is below the number of topics the ones
    with most waiting come first, so that all have their turn in the end.
    """
    waiting = {place: n for place, n in backlog.items() if n > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    order = sorted(waiting, key=lambda place: (-waiting[place], place))
    if limit <= len(order):
        return dict.fromkeys(order[:limit], 1)
    spare = limit - len(order)  # one for each, the rest in proportion
    parts = {place: 1 + spare * (waiting[place] - 1) // (total - len(order)) for place in order}
    for place in order:
        more = min(limit - sum(parts.values()), waiting[place] - parts[place])
        if more <= 0:
            break
        parts[place] += more
    return parts


def admit_records(start: Offsets, target: Offsets, limit: int) -> Offsets:
    """Go from `start` towards `target` by at most `limit` seqs in all."""
    return _advance(start, target, share(_backlog(start, target), limit))


def admit_bytes(start: Offsets, target: Offsets, limit: int, survey: Survey) -> Offsets:
    """The same by bytes, guessed from what a record of the topic has in the mean."""
    mean = {p: max(survey.entries[p].record_bytes, 1.0) for p in target if p in survey.entries}
    backlog = _backlog(start, target)
    sizes = {place: int(n * mean.get(place, 1.0)) for place, n in backlog.items()}
    parts = share(sizes, limit)
    taken = {
        place: min(backlog[place], max(1, int(parts[place] / mean.get(place, 1.0))))
        for place in parts
    }
    return _advance(start, target, taken)


def _backlog(start: Offsets, target: Offsets) -> dict[Place, int]:
    return {place: mark.seq - start[place].seq for place, mark in target.items()}


def _advance(start: Offsets, target: Offsets, parts: Mapping[Place, int]) -> Offsets:
    return {
        place: Mark(
            start[place].seq + min(parts.get(place, 0), mark.seq - start[place].seq), mark.inc
        )
        for place, mark in target.items()
    }
