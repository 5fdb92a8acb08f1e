"""The options of a query that writes, and the broker that each topic is written to."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.spark import options as query_options
from broker.spark.errors import EPOCH_OF_STREAM, OptionError

FIRST: Final = "first"
BY_TOPIC: Final = "topic"
ROUTINGS: Final = (FIRST, BY_TOPIC)


WRITE: Final = (
    *query_options.SHARED, "topic", "delivery", "writerId", "epoch", "routing",
    "checkpointLocation", "queryName",  # options of Spark itself that sinks receive
)  # fmt: skip
TRANSACTIONAL: Final = "transactional"
DEDUPE: Final = "dedupe"
APPEND: Final = "append"
DELIVERIES: Final = (TRANSACTIONAL, DEDUPE, APPEND)


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """The options of a query that writes."""

    access: query_options.Access
    topic: str | None = None
    delivery: str = TRANSACTIONAL
    writer_id: str | None = None
    epoch: int | None = None  # of a batch write that may be repeated
    routing: str = FIRST
    key_header: str | None = None


def write_settings(options: Mapping[str, str], *, stream: bool) -> WriteSettings:
    parsed = query_options.ParsedOptions(options, WRITE)
    parsed.needs("epoch", "writerId")
    if stream and parsed.has("epoch"):
        raise OptionError(EPOCH_OF_STREAM)
    writer_id = parsed.text("writerId")
    if writer_id is not None and not query_options.is_name(writer_id):
        raise query_options.bad("writerId", writer_id, query_options.NAME)
    return WriteSettings(
        access=query_options.access(parsed),
        topic=parsed.text("topic"),
        delivery=parsed.choice("delivery", TRANSACTIONAL, DELIVERIES),
        writer_id=writer_id,
        epoch=parsed.number("epoch", None, low=0, high=2**63 - 1),
        routing=parsed.choice("routing", FIRST, ROUTINGS),
        key_header=parsed.text("keyHeader"),
    )


def server_of(topic: str, servers: Sequence[str], routing: str) -> int:
    """The index of the topic's server: the first one, or one by a hash of the topic, which selects
    the same server in any order of the servers."""
    if routing == FIRST or len(servers) == 1:
        return 0
    order = sorted(range(len(servers)), key=lambda at: servers[at])
    return order[zlib.crc32(topic.encode()) % len(servers)]
