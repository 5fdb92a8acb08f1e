"""Appends messages of blocks to a stream's log."""

import builtins
from typing import final

from broker.engine.stream.store import StreamStore
from broker.protocols.jetstream.blocks.records import Block, Tombstones

@final
class Transfer:
    messages: int
    bytes: int
    first: int
    last: int
    digest: int
    too_large: list[int]
    def __init__(self, tombstones: Tombstones, ttls: bool) -> None: ...
    def move(
        self, block: Block, store: StreamStore | None, before: int, bytes_max: int
    ) -> bool: ...
    def add(
        self,
        store: StreamStore | None,
        seq: int,
        timestamp_ns: int,
        subject: builtins.bytes,
        headers: builtins.bytes,
        body: builtins.bytes,
    ) -> None: ...

def read_back(store: StreamStore) -> tuple[int, int]: ...
