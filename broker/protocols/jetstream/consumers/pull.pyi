"""Pull consumers: clients request messages."""

from typing import final

from broker.protocols.jetstream.consumers.channel import NsqChannel
from broker.protocols.jetstream.consumers.consumer import Consumer

POLICIES: dict[str, int]

@final
class PullConsumer(Consumer):
    channel: NsqChannel | None
    def open_channel(self, name: str) -> NsqChannel: ...
    def channel_unused(self) -> None: ...
    def is_used(self) -> bool: ...
    def output_drained(self) -> None: ...
    def unpin(self) -> None: ...
