"""Finds stored messages of a stream by sequence, subject or time."""

from typing import final

from broker.engine.stream.store import StreamStore
from broker.protocols.jetstream.structs import MsgGetRequest, StoredMsg

@final
class Lookup:
    store: StreamStore
    def __init__(self, store: StreamStore) -> None: ...
    def is_stored(self, request: MsgGetRequest) -> bool: ...
    def get(self, request: MsgGetRequest) -> StoredMsg | None: ...
    def page(
        self,
        subject: str,
        seq: int,
        newest_first: bool = False,
        latest: bool = False,
        limit: int = 0,
        bytes_max: int = 0,
    ) -> tuple[list[tuple[int, int, bytes, bytes, bytes]], int]: ...
    def seq_at(self, wall_ns: int) -> int: ...
