"""An account: a separate subject space and the sessions in it."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

from broker.protocols.nats.accounts.mapping import Mapper
from broker.protocols.nats.client.rate_limit import Bucket
from broker.routing.router import Router
from broker.runtime.interfaces import Sink
from broker.runtime.turn import Turn

class Message(NamedTuple):
    subject: bytes
    reply: bytes
    headers: bytes
    data: bytes
    session: Any
    account: Account

@final
class CurrentPublisher: ...

@final
class LocalSubscription(Sink):
    def close(self) -> None: ...

class Importer(Sink):
    def reach(self, request: bytes, messages: bytes) -> tuple[Account, bytes] | None: ...

@final
class Account:
    name: str
    router: Router
    turn: Turn
    current_publisher: CurrentPublisher
    sessions: set[Any]
    leafs: set[Any]
    config: Any
    mapper: Mapper | None
    imports: Importer | None
    connections_max: int
    subscriptions_max: int
    payload_max: int
    leafs_max: int
    traced: bool
    bucket: Bucket | None
    total_connections: int
    slow_consumers: int
    def __init__(
        self,
        name: str,
        turn: Turn,
        current_publisher: CurrentPublisher,
        router: Router | None = None,
    ) -> None: ...
    def traffic(self) -> tuple[int, int, int, int]: ...
    def leaf_traffic(self) -> tuple[int, int, int, int]: ...
    def join(self, session: Any) -> None: ...
    def leave(self, session: Any) -> None: ...
    def interest(self, subject: bytes) -> int: ...
    def has_exact(self, subject: bytes) -> bool: ...
    def listen(
        self, subject: bytes, callback: Callable[[Message], object], queue: bytes = b""
    ) -> LocalSubscription: ...
    def publish(
        self,
        subject: bytes,
        data: bytes = b"",
        reply: bytes = b"",
        headers: bytes = b"",
        session: Any = None,
    ) -> int: ...
