"""Copies the messages of one stream into another one."""

from collections.abc import Callable
from typing import final

from broker.engine.stream.interfaces import StreamReaders
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.publish.stream import Stream
from broker.protocols.jetstream.structs import StreamSource
from broker.runtime.interfaces import Session

@final
class OriginReader(StreamReaders):
    def __init__(self, copier: Copier) -> None: ...

@final
class TargetReader(StreamReaders):
    def __init__(self, copier: Copier) -> None: ...

@final
class Copier(Session):
    source: StreamSource
    key: str
    mirrors: bool
    target: Stream
    origin: Stream | None
    at: int
    kept: int
    error: ApiError | None
    connected: bool
    progressed: Callable[[], None] | None
    def __init__(
        self, target: Stream, source: StreamSource, position: int, mirrors: bool
    ) -> None: ...
    def connect(self, origin: Stream) -> None: ...
    def disconnect(self) -> None: ...
    def close(self) -> None: ...
    @property
    def accounted(self) -> int: ...
    @property
    def pending(self) -> bool: ...
    @property
    def missing(self) -> bool: ...
    @property
    def lag(self) -> int: ...
    @property
    def active_ns(self) -> int: ...

def source_key(source: StreamSource) -> str: ...
def found_positions(stream: Stream, after: int) -> dict[str, int]: ...
