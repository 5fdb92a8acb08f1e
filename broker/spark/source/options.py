"""The options of a query that reads, checked once and sent to the tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.spark import options as given
from broker.spark.limits import READER_TTL_BATCH_S, READER_TTL_STREAM_S
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
    """Check the options that batches and streams share. OptionError."""
    words = given.Words(options, READ)
    given.access(words)
    given.wanted(words)
    return given.reading(words)
