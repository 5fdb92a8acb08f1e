"""Direct get: sends stored messages to clients, without the JSON of the API."""

from typing import final

from broker.protocols.jetstream.publish.answers import Answers
from broker.protocols.jetstream.publish.lookup import Lookup
from broker.runtime.interfaces import Sink

@final
class Direct(Sink):
    answers: Answers
    lookup: Lookup
    def __init__(self, answers: Answers, lookup: Lookup, stream: str, domain: str) -> None: ...
    def close(self) -> None: ...
