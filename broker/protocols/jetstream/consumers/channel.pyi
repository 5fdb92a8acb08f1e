"""The NSQ clients of a consumer."""

from collections.abc import Callable
from typing import final

from broker.engine.stream.cursor import StreamCursor
from broker.protocols.stream_topic import StreamChannel
from broker.runtime.interfaces import Task
from broker.runtime.turn import Turn

@final
class NsqChannel(StreamChannel):
    def __init__(
        self,
        name: str,
        cursor: StreamCursor,
        turn: Turn,
        consumer: Task,
        on_unused: Callable[[], object] | None = None,
    ) -> None: ...
    def restart(self) -> None: ...
    def stop(self) -> None: ...
    def end(self) -> None: ...
