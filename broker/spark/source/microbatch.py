"""Micro-batches of a stream: the offsets where the next one begins and ends, and its ranges.

A log that was trimmed beyond the stream's offset, deleted, recreated or truncated since the last
batch is detected here; `offsets.report_loss` decides whether that ends the query. Admission control
divides the limit of a trigger among the topics, in proportion to their backlog.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.spark.errors import DOWN, RECREATED, SHORTER, TRIMMED, VANISHED, BrokerDownError
from broker.spark.offsets import Offset, Offsets, TopicPartition, report_loss
from broker.spark.topics import BrokerRange, Entry, Survey


def base(start: Offsets, survey: Survey, fail: bool) -> Offsets:
    """The offsets where reading continues; new topics are read from their earliest record."""
    offsets = survey.earliest()
    for tp, at in start.items():
        entry = survey.entries.get(tp)
        if entry is not None:
            offsets[tp] = _begin(at, entry, fail)
        elif not survey.knows(tp):
            offsets[tp] = at  # its broker is down: the offset does not change
        else:
            report_loss(VANISHED.format(**tp._asdict(), start=at.seq), fail)
    return offsets


def _begin(at: Offset, entry: Entry, fail: bool) -> Offset:
    where = entry.tp._asdict()
    if at.incarnation != entry.incarnation:
        report_loss(RECREATED.format(**where, start=at.seq), fail)
        return entry.offset(entry.first)
    if entry.next < at.seq:
        report_loss(SHORTER.format(**where, next=entry.next, start=at.seq), fail)
        return entry.offset(entry.next)
    if at.seq < entry.first:
        if not entry.stream:
            report_loss(TRIMMED.format(**where, start=at.seq, end=entry.first - 1), fail)
        return entry.offset(entry.first)
    return at


def target(begin: Offsets, survey: Survey, frozen: Offsets | None = None) -> Offsets:
    """The end of the readable records; `frozen` is the limit of a query that ends."""
    ends: Offsets = {}
    for tp, at in begin.items():
        entry = survey.entries.get(tp)
        if entry is None:
            ends[tp] = at
        elif frozen is None:
            ends[tp] = entry.offset(entry.next)
        elif tp not in frozen or frozen[tp].incarnation != entry.incarnation:
            ends[tp] = at
        else:
            ends[tp] = Offset(max(at.seq, min(entry.next, frozen[tp].seq)), entry.incarnation)
    return ends


def known(begin: Offsets, start: Offsets, frozen: Offsets | None) -> Offsets:
    """The topics of `begin`, for a query that ends without those created after its start."""
    if frozen is None:
        return begin
    return {tp: at for tp, at in begin.items() if tp in start or tp in frozen}


def ranges_between(start: Offsets, end: Offsets, survey: Survey, fail: bool) -> list[BrokerRange]:
    """The range of each topic between two offsets, which may be of an earlier run."""
    ranges: list[BrokerRange] = []
    for tp, at in end.items():
        entry = survey.entries.get(tp)
        before = start.get(tp)
        if before is not None and before.incarnation == at.incarnation and before.seq >= at.seq:
            continue
        if entry is None:
            _missing(tp, before, at, survey, fail)
        elif entry.incarnation != at.incarnation:
            report_loss(RECREATED.format(**tp._asdict(), start=at.seq), fail)
        else:
            is_new = before is None or before.incarnation != at.incarnation
            begin = entry.first if is_new or before is None else before.seq
            if entry.stream:  # after a purge it may begin at any later seq
                begin = max(begin, entry.first)
            ranges.append(entry.read(begin, at.seq))
    return [one for one in ranges if one.seqs > 0]


def _missing(
    tp: TopicPartition, before: Offset | None, at: Offset, survey: Survey, fail: bool
) -> None:
    if not survey.knows(tp):
        raise BrokerDownError(DOWN.format(servers="; ".join(survey.down)))
    start = at.seq if before is None else before.seq
    report_loss(VANISHED.format(**tp._asdict(), start=start), fail)


def share(backlog: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide `limit` among topics in proportion to `backlog`, at least 1 for each.

    The sum is the limit, or the whole backlog if that is less. If the limit is below the number of
    topics, those with the largest backlog have 1, and the others nothing until their backlog has
    grown.
    """
    waiting = {tp: n for tp, n in backlog.items() if n > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    order = sorted(waiting, key=lambda tp: (-waiting[tp], tp))
    if limit <= len(order):
        return dict.fromkeys(order[:limit], 1)
    spare = limit - len(order)  # one for each, the rest in proportion
    parts = {tp: 1 + spare * (waiting[tp] - 1) // (total - len(order)) for tp in order}
    for tp in order:
        more = min(limit - sum(parts.values()), waiting[tp] - parts[tp])
        if more <= 0:
            break
        parts[tp] += more
    return parts


def admit_records(start: Offsets, target: Offsets, limit: int) -> Offsets:
    """Advance from `start` towards `target` by at most `limit` seqs in total."""
    return _advance(start, target, share(_backlog(start, target), limit))


def admit_bytes(start: Offsets, target: Offsets, limit: int, survey: Survey) -> Offsets:
    """The same by bytes, estimated from the mean size of the topic's records."""
    mean = {p: max(survey.entries[p].record_bytes, 1.0) for p in target if p in survey.entries}
    backlog = _backlog(start, target)
    sizes = {tp: int(n * mean.get(tp, 1.0)) for tp, n in backlog.items()}
    parts = share(sizes, limit)
    counts = {tp: min(backlog[tp], max(1, int(parts[tp] / mean.get(tp, 1.0)))) for tp in parts}
    return _advance(start, target, counts)


def _backlog(start: Offsets, target: Offsets) -> dict[TopicPartition, int]:
    return {tp: offset.seq - start[tp].seq for tp, offset in target.items()}


def _advance(start: Offsets, target: Offsets, parts: Mapping[TopicPartition, int]) -> Offsets:
    return {
        tp: Offset(
            start[tp].seq + min(parts.get(tp, 0), offset.seq - start[tp].seq), offset.incarnation
        )
        for tp, offset in target.items()
    }
