"""Pull consumers: clients request messages."""

from typing import final

from broker.protocols.jetstream.consumers.consumer import Consumer

POLICIES: dict[str, int]

@final
class PullConsumer(Consumer):
    def go_on(self) -> None: ...
    def unpin(self) -> None: ...
