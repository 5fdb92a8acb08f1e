"""JetStream loads: publishers that wait for PubAcks."""

from typing import final

from broker.bench.requests import Requests

@final
class JetStreamPublish(Requests):
    def acknowledged(self) -> int: ...
    def refused(self) -> tuple[int, str]: ...
