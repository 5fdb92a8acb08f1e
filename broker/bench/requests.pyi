"""Messages that each wait for an answer, with a reply subject of their own."""

from typing_extensions import disjoint_base

from broker.bench.histogram import Histogram
from broker.bench.nats_load import NatsLoad

@disjoint_base
class Requests(NatsLoad):
    def begin(
        self,
        heads: list[bytes],
        inboxes: list[bytes],
        rests: list[bytes],
        window: int,
        target: int,
    ) -> None: ...
    def published(self) -> int: ...
    def latencies(self) -> Histogram: ...
