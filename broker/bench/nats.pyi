"""NATS loads: publish to many subscribers, and request/reply."""

from typing import final

from broker.bench.frames import Block
from broker.bench.loadgen import Load
from broker.bench.requests import Requests

@final
class NatsFlow(Load):
    def begin(
        self, block: Block, counts: list[int], ahead: int, resume: int, shared: bool
    ) -> None: ...
    def published(self) -> int: ...
    def published_each(self) -> list[tuple[int, int]]: ...
    def received(self) -> tuple[int, int]: ...

@final
class NatsRequest(Requests):
    def received(self) -> tuple[int, int]: ...
