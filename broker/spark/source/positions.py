"""Start and end of a query: from its options to a seq for each topic.

The brokers resolve times. A start time without a record at or after it is an error unless the
strategy is `latest`; for an end time it means the latest record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.spark.errors import ENDLESS, NO_RECORD, NOT_SUBSCRIBED, ONLY_BATCH, OptionError
from broker.spark.offsets import Offset, Offsets, TopicPartition
from broker.spark.options import ParsedOptions, Wanted, bad
from broker.spark.topics import Survey

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_FORM: Final = 'earliest, latest, or of the form {"topic": {"0": 42}}'

# {tp: time in ms} -> {tp: the first seq at or after it; None if no record is that late}
Resolve = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]]


@dataclass(frozen=True, slots=True)
class Position:
    """A start or end: one for all topics, a seq for each, a time for all, or a time for each."""

    option: str
    default: int = EARLIEST  # for topics that are not named
    seqs: Mapping[TopicPartition, int] = field(default_factory=dict)
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest_if_none: bool = False  # if there is no record at or after the time


def starting(parsed: ParsedOptions, *, stream: bool) -> Position:
    strategy = parsed.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    position = _position(parsed, "starting", LATEST if stream else EARLIEST, strategy == "latest")
    is_endless = position.default == LATEST and not position.seqs and position.time_ms is None
    if not stream and is_endless and not position.times_ms:
        raise OptionError(ENDLESS.format(name="startingOffsets", value="latest"))
    return position


def ending(parsed: ParsedOptions) -> Position:
    position = _position(parsed, "ending", LATEST, latest_if_none=True)
    if parsed.has("endingOffsets") and position.default == EARLIEST:
        raise OptionError(ENDLESS.format(name="endingOffsets", value="earliest"))
    if EARLIEST in position.seqs.values():
        raise bad("endingOffsets", EARLIEST, "an end")
    return position


ENDINGS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STARTINGS: Final = (
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)  # fmt: skip


def refuse_endings(parsed: ParsedOptions) -> None:
    for name in parsed.present(ENDINGS):
        raise OptionError(ONLY_BATCH.format(name=name))


def _position(parsed: ParsedOptions, side: str, default: int, latest_if_none: bool) -> Position:
    by_offset, by_time, by_times = (
        f"{side}{x}" for x in ("Offsets", "Timestamp", "OffsetsByTimestamp")
    )
    option = parsed.only_one((by_offset, by_time, by_times))
    if option is None:
        return Position(by_offset, default)
    if option == by_time:
        return Position(
            option, time_ms=parsed.number(by_time, None, low=0), latest_if_none=latest_if_none
        )
    unnamed = EARLIEST if side == "starting" else LATEST
    if option == by_times:
        times = _seqs_by_topic(parsed, option, 'of the form {"topic": {"0": 1700000000000}}', 0)
        return Position(option, unnamed, times_ms=times, latest_if_none=latest_if_none)
    text = parsed.text(option) or ""
    if text.strip().lower() in _WORDS:
        return Position(option, _WORDS[text.strip().lower()])
    return Position(option, unnamed, seqs=_seqs_by_topic(parsed, option, _FORM, EARLIEST))


def _seqs_by_topic(
    parsed: ParsedOptions, option: str, form: str, low: int
) -> dict[TopicPartition, int]:
    tree: Any = parsed.json(option, form)
    try:
        found = {
            TopicPartition(topic, int(partition)): int(value)
            for topic, partitions in tree.items()
            for partition, value in partitions.items()
        }
        if not found or min(found.values()) < low:
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise bad(option, parsed.text(option), form) from None
    return found


def resolve(position: Position, survey: Survey, wanted: Wanted, find: Resolve) -> Offsets:
    """The seq of each topic. OptionError. A starting seq of 0 means the first one, 1."""
    for tp in (*position.seqs, *position.times_ms):
        if not wanted.has(*tp):
            raise OptionError(
                NOT_SUBSCRIBED.format(name=position.option, topic=tp.topic, partition=tp.partition)
            )
    times = {p: ms for p, ms in position.times_ms.items() if p in survey.entries}
    if position.time_ms is not None:
        times = dict.fromkeys(survey.entries, position.time_ms)
    found = find(times) if times else {}
    ends: Offsets = {}
    for tp, entry in survey.entries.items():
        seq = position.seqs.get(tp, position.default)
        if tp in times:
            at = found.get(tp)
            if at is None and not position.latest_if_none:
                raise OptionError(
                    NO_RECORD.format(topic=tp.topic, partition=tp.partition, time_ms=times[tp])
                )
            seq = LATEST if at is None else at
        exact = {EARLIEST: entry.first, LATEST: entry.next}
        ends[tp] = Offset(exact.get(seq, max(seq, 1)), entry.incarnation)
    return ends
