"""Which broker a topic is written to when there are several."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

FIRST: Final = "first"
BY_TOPIC: Final = "topic"
ROUTINGS: Final = (FIRST, BY_TOPIC)


def server_of(topic: str, servers: Sequence[str], routing: str) -> int:
    """The first server, or one by a hash of the topic: always the same for the same servers, in
    whatever order they are given."""
    if routing == FIRST or len(servers) == 1:
        return 0
    order = sorted(range(len(servers)), key=lambda at: servers[at])
    return order[zlib.crc32(topic.encode()) % len(servers)]
