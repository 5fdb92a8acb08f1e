"""All that the options of one source or sink say, read once and sent to the tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.spark import options as given
from broker.spark.errors import EPOCH_OF_STREAM, OptionError
from broker.spark.limits import READER_TTL_BATCH_S, READER_TTL_STREAM_S
from broker.spark.sink.options import FIRST, ROUTINGS
from broker.spark.source import positions

log = logging.getLogger("twinwire.spark")

READ: Final = (
    *given.SHARED, *given.SUBSCRIPTIONS, *positions.STARTINGS, *positions.ENDINGS,
    "failOnDataLoss", "gapRows", "includeHeaders", "includeMetadata", "subjectFilter",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition",
    "fetchBytes", "fetchCompression", "reader", "hold", "readerTtl",
)  # fmt: skip
PER_TRIGGER: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The options of a query that reads."""

    access: given.Access
    wanted: given.Wanted
    reading: given.Reading
    splitting: given.Splitting
    progress: given.Progress
    start: positions.Position
    end: positions.Position | None  # None = a stream


def read_settings(options: Mapping[str, str], *, stream: bool) -> ReadSettings:
    words = given.Words(options, READ)
    if stream:
        positions.refuse_endings(words)
    else:
        for name in words.given(PER_TRIGGER):
            log.warning("option %s has no meaning in a batch query", name)
    progress = given.progress(words, READER_TTL_STREAM_S if stream else READER_TTL_BATCH_S)
    return ReadSettings(
        access=given.access(words),
        wanted=given.wanted(words),
        reading=given.reading(words),
        splitting=given.splitting(words),
        progress=progress,
        start=positions.starting(words, stream=stream),
        end=None if stream else positions.ending(words),
    )


def check_readable_options(options: Mapping[str, str]) -> given.Reading:
    """What can be said before it is known whether a batch or a stream is read."""
    words = given.Words(options, READ)
    given.access(words)
    given.wanted(words)
    return given.reading(words)


WRITE: Final = (
    *given.SHARED, "topic", "delivery", "writerId", "epoch", "routing",
    "checkpointLocation", "queryName",  # Spark's own, handed to sinks
)  # fmt: skip
TRANSACTIONAL: Final = "transactional"
DEDUPE: Final = "dedupe"
APPEND: Final = "append"
DELIVERIES: Final = (TRANSACTIONAL, DEDUPE, APPEND)


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """The options of a query that writes."""

    access: given.Access
    topic: str | None = None
    delivery: str = TRANSACTIONAL
    writer_id: str | None = None
    epoch: int | None = None  # of a batch write that may be done again
    routing: str = FIRST
    key_header: str | None = None


def write_settings(options: Mapping[str, str], *, stream: bool) -> WriteSettings:
    words = given.Words(options, WRITE)
    words.needs("epoch", "writerId")
    if stream and words.has("epoch"):
        raise OptionError(EPOCH_OF_STREAM)
    writer_id = words.text("writerId")
    if writer_id is not None and not given.is_name(writer_id):
        raise given.bad("writerId", writer_id, given.NAME)
    return WriteSettings(
        access=given.access(words),
        topic=words.text("topic"),
        delivery=words.choice("delivery", TRANSACTIONAL, DELIVERIES),
        writer_id=writer_id,
        epoch=words.number("epoch", None, low=0, high=2**63 - 1),
        routing=words.choice("routing", FIRST, ROUTINGS),
        key_header=words.text("keyHeader"),
    )
