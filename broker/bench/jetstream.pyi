"""JetStream loads: publishers that wait for PubAcks."""

from typing import final

from broker.bench.histogram import Histogram
from broker.bench.loadgen import Load

@final
class JetStreamPublish(Load):
    def begin(
        self,
        heads: list[bytes],
        inboxes: list[bytes],
        rests: list[bytes],
        window: int,
        wanted: int,
    ) -> None: ...
    def published(self) -> int: ...
    def acknowledged(self) -> int: ...
    def refused(self) -> tuple[int, str]: ...
    def latencies(self) -> Histogram: ...
