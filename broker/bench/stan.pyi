"""NATS Streaming loads: publishers with a window of PubAcks, subscribers that ack each message."""

from typing import final

from broker.bench.histogram import Histogram
from broker.bench.loadgen import Load

@final
class StanFlow(Load):
    def begin(
        self,
        units: list[tuple[bytes, int]],
        readers: list[tuple[bytes, bytes, bytes]],
        counts: list[int],
        window: int,
        refill: int,
        ahead: int,
    ) -> None: ...
    def published(self) -> int: ...
    def acknowledged(self) -> int: ...
    def refused(self) -> tuple[int, str]: ...
    def received(self) -> tuple[int, int]: ...
    def redelivered(self) -> int: ...
    def latencies(self) -> Histogram: ...
