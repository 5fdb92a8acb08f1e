"""Copies the messages of one stream into another: a mirror, or one source of a stream."""

from typing import final

from broker.engine.stream.interfaces import StreamReaders
from broker.engine.stream.store import StreamStore
from broker.protocols.jetstream.publish.stream import Stream

class Pattern:
    def __init__(self, source: str, destination: str) -> None: ...

@final
class Feed(StreamReaders):
    stream: Stream
    name: str
    mirror: bool
    next: int
    lost: bool
    waiting: bool
    closed: bool
    def __init__(
        self, stream: Stream, name: str, patterns: list[tuple[str, str]], *, mirror: bool
    ) -> None: ...
    def connect(self, origin: StreamStore, start: int) -> None: ...
    def disconnect(self) -> None: ...
    def close(self) -> None: ...
    @property
    def connected(self) -> bool: ...
    @property
    def lag(self) -> int: ...
    @property
    def labels(self) -> list[bytes]: ...
    def resume(self, start: int) -> None: ...

def sourced_until(store: StreamStore, after: int, found: dict[tuple[str, bytes], int]) -> int: ...
