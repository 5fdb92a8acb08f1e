"""One consumer: the common part of pull and push consumers."""

from typing import Any

from typing_extensions import disjoint_base

from broker.engine.stream.cursor import CursorOwner, StreamCursor
from broker.protocols.jetstream.consumers.outlet import Outlet
from broker.protocols.jetstream.publish.stream import Stream
from broker.protocols.jetstream.structs import (
    ConsumerConfig,
    ConsumerInfo,
    PriorityGroupState,
    SequenceInfo,
)

@disjoint_base
class Consumer(CursorOwner):
    registry: Any
    stream: Stream
    stream_name: str
    name: str
    config: ConsumerConfig
    created_ns: int
    unnamed: bool
    cursor: StreamCursor
    is_closed: bool
    def __init__(
        self,
        registry: Any,
        outlet: Outlet,
        stream: Any,
        cursor: StreamCursor,
        config: ConsumerConfig,
        created_ns: int,
    ) -> None: ...
    def apply_config(self, config: ConsumerConfig) -> None: ...
    def start(self) -> None: ...
    def open(self) -> None: ...
    def configure(self, config: ConsumerConfig) -> None: ...
    def set_pause(self, config: ConsumerConfig, until_ns: int) -> None: ...
    def reset(self, seq: int) -> None: ...
    def close(self, line: str = "", pending: bool = False) -> None: ...
    def release(self) -> None: ...
    def info(self) -> ConsumerInfo: ...
    def numbers(self) -> tuple[int, int, int, int, int, int, int, int, int, int]: ...
    def unpin(self) -> None: ...
    def groups(self) -> list[PriorityGroupState]: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def push_bound(self) -> bool: ...

def sequence(pair: tuple[int, int], active_ns: int) -> SequenceInfo: ...
