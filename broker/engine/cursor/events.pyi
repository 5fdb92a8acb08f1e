"""Delivery events: the outcome of each delivery, in a log of its own."""

from collections.abc import Callable
from typing import final

from broker.engine.cursor.cursor import DeliveryEvents
from broker.engine.log.log import Log
from broker.engine.state import EngineState

@final
class EventLog(DeliveryEvents):
    topic: str
    written: int
    lost: int
    def __init__(
        self,
        shared: EngineState,
        open_log: Callable[[str], Log],
        topic: str,
        buffer_bytes: int,
        linger_ns: int,
    ) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
