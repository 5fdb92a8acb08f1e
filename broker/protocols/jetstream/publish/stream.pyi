"""A stream: it stores the messages that are published to its subjects, and answers the
publishers."""

from collections.abc import Callable, Iterable
from typing import Any, final

from broker.engine.stream.cursor import StreamCursors
from broker.engine.stream.store import StreamOwner, StreamStore
from broker.protocols.jetstream.publish.answers import Answers
from broker.protocols.jetstream.publish.lookup import Lookup
from broker.protocols.jetstream.structs import StreamConfig
from broker.protocols.nats.accounts.account import Account

@final
class Stream(StreamOwner):
    name: str
    account: Account
    store: StreamStore
    cursors: StreamCursors
    config: StreamConfig
    consumers: dict[str, Any]
    created_ns: int
    has_room: Callable[[int], bool] | None
    domain: str
    answers: Answers
    lookup: Lookup
    send_advisory: Callable[[str, str, dict[str, Any]], None] | None
    stored: int
    duplicates: int
    refused: int
    def __init__(
        self,
        account: Account,
        store: StreamStore,
        config: StreamConfig,
        created_ns: int,
        domain: str = "",
    ) -> None: ...
    def configure(self, config: StreamConfig) -> None: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def add_consumer(self, name: str, consumer: Any, filters: Iterable[str] = ()) -> None: ...
    def set_filters(self, name: str, filters: Iterable[str]) -> None: ...
    def remove_consumer(self, name: str) -> None: ...
    @property
    def consumer_count(self) -> int: ...
