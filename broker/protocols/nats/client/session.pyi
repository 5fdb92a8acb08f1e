"""One NATS connection as the broker sees it."""

from typing import Any, final

from broker.base.errors import WireError
from broker.protocols.nats.accounts.account import Account
from broker.protocols.nats.auth.authenticator import Identity, TlsPeer
from broker.protocols.nats.client.frontend import NatsFace
from broker.protocols.nats.client.permissions import Permit
from broker.protocols.nats.client.rate_limit import Bucket
from broker.protocols.nats.tls_gate import TlsGate
from broker.protocols.nats.wire.options import ClientOptions
from broker.runtime.interfaces import Session

@final
class NatsSession(Session):
    link: Any
    client_id: int
    kind: str
    host: str
    port: int
    account: Account | None
    identity: Identity | None
    permit: Permit | None
    tls_peer: TlsPeer | None
    tls_gate: TlsGate[NatsSession] | None
    nonce: bytes | None
    extra: Any
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    start_ns: int
    stop_ns: int
    active_ns: int
    rtt_ns: int
    pings_out: int
    waiting: bool
    rated: bool
    dropped: int
    ponged: bool
    options: ClientOptions | None
    closed_because: str | None
    def __init__(self, face: NatsFace) -> None: ...
    @property
    def subscriptions(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    def bind(self, account: Account, identity: Identity, permit: Permit | None) -> None: ...
    def pace(self, buckets: tuple[Bucket, ...]) -> None: ...
    def limit(self, identity: Identity) -> None: ...
    def expect_login(self, timeout_ns: int) -> None: ...
    def take(self, options: ClientOptions) -> None: ...
    def wait(self) -> None: ...
    def go(self) -> None: ...
    def ok(self) -> None: ...
    def send(self, line: bytes) -> None: ...
    def end(self, error: WireError | None, why: str) -> None: ...
    def tell(self, error: WireError, **parts: bytes) -> None: ...
    def drop_slow(self, why: str) -> None: ...
    def closing_down(self) -> None: ...
    def kick(self) -> None: ...
    def list_subs(self, most: int = ...) -> list[tuple[bytes, bytes, bytes, int, int]]: ...
    def prune(self) -> None: ...
