"""The hot path of NATS Streaming."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

from broker.engine.cursor.cursor import Cursor
from broker.engine.engine import Engine
from broker.engine.log.log import Log
from broker.protocols.access import Access
from broker.protocols.nats.accounts.account import Account
from broker.protocols.stan.config import ChannelLimits
from broker.protocols.stan.store import SubRecord
from broker.routing.router import Router
from broker.runtime.interfaces import Session, Sink

KINDS: tuple[str, ...]

class RefusedError(Exception): ...

class Request(NamedTuple):
    kind: str
    subject: bytes
    reply: bytes
    data: bytes
    session: Session | None

@final
class Service(Sink):
    account: Account
    engine: Engine
    access: Access
    router: Router
    clients: dict[bytes, Client]
    connections: dict[bytes, Client]
    channels: dict[bytes, Channel]
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    def __init__(
        self,
        account: Account,
        engine: Engine,
        access: Access,
        handle: Callable[[Request], object],
        make_channel: Callable[[str], Channel],
    ) -> None: ...
    def listen(self, pub_prefix: bytes, subjects: list[bytes]) -> None: ...
    def close(self) -> None: ...
    def publish(self, subject: bytes, data: bytes = b"", reply: bytes = b"") -> int: ...
    def register(self, client: Client) -> None: ...
    def unregister(self, client: Client) -> None: ...
    def forget(self, channel: Channel) -> None: ...

@final
class Client:
    client_id: str
    key: bytes
    hb_inbox: str
    conn_id: bytes
    protocol: int
    ping_interval: int
    ping_max: int
    owner: str | None
    subscriptions: set[Subscription]
    failures: int
    timer: Any
    probed: bool
    closed: bool
    def __init__(
        self,
        client_id: str,
        hb_inbox: str,
        conn_id: bytes = b"",
        protocol: int = 0,
        ping_interval: int = 0,
        ping_max: int = 0,
        owner: str | None = None,
    ) -> None: ...
    def set_healthy(self, healthy: bool) -> None: ...

@final
class Channel(Session):
    name: str
    service: Service
    log: Log
    subscriptions: Subscribers
    limits: ChannelLimits
    active: float
    def __init__(self, service: Service, log: Log) -> None: ...
    def limit(self, msgs_max: int, bytes_max: int, age_max_ns: int) -> None: ...
    def has_new_messages(self) -> bool: ...
    @property
    def msgs(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def first_available(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...

@final
class Subscribers:
    def add(self, subscription: Subscription) -> None: ...
    def remove(self, subscription: Subscription) -> None: ...
    def clear(self) -> None: ...
    def listen(self, subscription: Subscription, inbox: str, ack_inbox: str) -> None: ...
    def stop_listening(self, subscription: Subscription, inbox: str, ack_inbox: str) -> None: ...
    def first_of(self, cursor: str) -> Subscription | None: ...
    def count_of(self, cursor: str) -> int: ...
    def find(self, inbox: str) -> Subscription | None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Subscription]: ...

@final
class Subscription(Sink):
    service: Service
    channel: Channel
    cursor: Cursor
    client: Client | None
    record: SubRecord
    last_sent: int
    def __init__(self, channel: Channel, cursor: Cursor, record: SubRecord) -> None: ...
    def attach(self, client: Client, paused: bool = False) -> None: ...
    def resume(self) -> None: ...
    def detach(self) -> None: ...
    @property
    def pending_count(self) -> int: ...
    @property
    def is_stalled(self) -> bool: ...
    @property
    def is_offline(self) -> bool: ...
