"""Push consumers: messages are sent to a subject without a request."""

from typing import final

from broker.protocols.jetstream.consumers.consumer import Consumer

@final
class PushConsumer(Consumer):
    def interest_changed(self) -> None: ...
    def output_drained(self) -> None: ...
