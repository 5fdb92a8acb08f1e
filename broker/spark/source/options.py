"""The options of a query that reads, checked once and sent to the tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.spark import options as query_options
from broker.spark.limits import READER_TTL_BATCH_S, READER_TTL_STREAM_S
from broker.spark.source import positions

log = logging.getLogger("twinwire.spark")

READ: Final = (
    *query_options.SHARED, *query_options.SUBSCRIPTIONS, *positions.STARTINGS, *positions.ENDINGS,
    "failOnDataLoss", "gapRows", "includeHeaders", "includeMetadata", "subjectFilter",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition",
    "fetchBytes", "fetchCompression", "reader", "hold", "readerTtl",
)  # fmt: skip
PER_TRIGGER: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The options of a query that reads."""

    access: query_options.Access
    wanted: query_options.Wanted
    reading: query_options.Reading
    splitting: query_options.Splitting
    progress: query_options.Progress
    start: positions.Position
    end: positions.Position | None  # None = a stream


def read_settings(options: Mapping[str, str], *, stream: bool) -> ReadSettings:
    parsed = query_options.ParsedOptions(options, READ)
    if stream:
        positions.refuse_endings(parsed)
    else:
        for name in parsed.present(PER_TRIGGER):
            log.warning("option %s has no meaning in a batch query", name)
    progress = query_options.progress(parsed, READER_TTL_STREAM_S if stream else READER_TTL_BATCH_S)
    return ReadSettings(
        access=query_options.access(parsed),
        wanted=query_options.wanted(parsed),
        reading=query_options.reading(parsed),
        splitting=query_options.splitting(parsed),
        progress=progress,
        start=positions.starting(parsed, stream=stream),
        end=None if stream else positions.ending(parsed),
    )


def check_readable_options(options: Mapping[str, str]) -> query_options.Reading:
    """Check the options that batches and streams share. OptionError."""
    parsed = query_options.ParsedOptions(options, READ)
    query_options.access(parsed)
    query_options.wanted(parsed)
    return query_options.reading(parsed)
