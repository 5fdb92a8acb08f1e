"""NSQ loads: publish with a window of answers, receive and FIN."""

from typing import final

from broker.bench.frames import Block
from broker.bench.histogram import Histogram
from broker.bench.loadgen import Load

@final
class NsqFlow(Load):
    def begin(
        self,
        block: Block,
        counts: list[int],
        window: int,
        refill: int,
        batch: int,
        channels: int,
        stamped: bool,
        round_trip: bool,
        backlog: int,
    ) -> None: ...
    def pace_at(self, per_second: float, messages: int) -> None: ...
    def published(self) -> int: ...
    def published_each(self) -> list[tuple[int, int]]: ...
    def acknowledged(self) -> int: ...
    def received(self) -> tuple[int, int]: ...
    def redelivered(self) -> int: ...
    def latencies(self) -> Histogram: ...
    def ack_latencies(self) -> Histogram: ...
