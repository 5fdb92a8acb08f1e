"""JetStream loads: readers of a stream, pushed or in batches that they request."""

from typing import final

from broker.bench.nats_load import NatsLoad

@final
class JetStreamConsume(NatsLoad):
    def begin(self, requests: list[bytes], batch: int, target: int, acks: bool) -> None: ...
    def received(self) -> tuple[int, int]: ...
