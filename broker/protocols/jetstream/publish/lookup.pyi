"""Finds stored messages of a stream by sequence, subject or time."""

from typing import final

from broker.engine.stream.store import StreamStore
from broker.protocols.jetstream.structs import MsgGetRequest, StoredMsg

@final
class Lookup:
    store: StreamStore
    def __init__(self, store: StreamStore) -> None: ...
    def get(self, request: MsgGetRequest) -> StoredMsg | None: ...
