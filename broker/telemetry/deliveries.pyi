"""Spans of deliveries from logs."""

from collections.abc import Callable
from typing import Any, final

from broker.engine.cursor.cursor import DeliveryEvents
from broker.engine.state import EngineState

OUTCOMES: dict[int, str]

@final
class DeliverySpans(DeliveryEvents):
    def __init__(self, shared: EngineState, ended: Callable[..., Any]) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
