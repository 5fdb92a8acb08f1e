"""One connection with the line protocol of NATS: the base of client and leaf sessions."""

from typing import Any

from typing_extensions import disjoint_base

from broker.base.errors import WireError
from broker.protocols.nats.accounts.account import Account
from broker.protocols.nats.auth.authenticator import Identity, TlsPeer
from broker.protocols.nats.client.frontend import NatsFrontend
from broker.protocols.nats.tls import TlsHandshake
from broker.protocols.nats.wire.options import ClientOptions
from broker.runtime.interfaces import Session

@disjoint_base
class LineSession(Session):
    link: Any
    client_id: int
    kind: str
    host: str
    port: int
    behind_proxy: bool
    account: Account | None
    options: ClientOptions | None
    identity: Identity | None
    tls_peer: TlsPeer | None
    tls_handshake: TlsHandshake[Any] | None
    nonce: bytes | None
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
    ponged: bool
    rated: bool
    closed_because: str | None
    def __init__(self, frontend: NatsFrontend) -> None: ...
    @property
    def subscriptions(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    def start_tls(self, handshake: TlsHandshake[Any]) -> None: ...
    def finish_tls(self, peer: TlsPeer | None) -> None: ...
    def make_nonce(self) -> bytes: ...
    def wait(self) -> None: ...
    def go(self) -> None: ...
    def go_on(self) -> None: ...
    def send(self, line: bytes) -> None: ...
    def send_error(self, error: WireError, **parts: bytes) -> None: ...
    def end(self, error: WireError | None, why: str, **parts: bytes) -> None: ...
    def refuse(self, code: int) -> None: ...
    def drop_slow(self, why: str) -> None: ...
    def closing_down(self) -> None: ...
    def kick(self) -> None: ...
    def list_subs(self, most: int = ...) -> list[tuple[bytes, bytes, bytes, int, int]]: ...
