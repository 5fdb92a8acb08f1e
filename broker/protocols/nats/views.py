"""What the monitoring pages need of the rest of the server; all of it is read on the loop's thread.

NatsServer, Account and NatsSession are what stands behind these; a LeafSession has what a client
has and, besides, what Link says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from broker.protocols.nats.auth.authenticator import Identity, TlsPeer
    from broker.protocols.nats.monitoring.closed import ClosedConnections
    from broker.protocols.nats.settings import Settings
    from broker.protocols.nats.wire.options import ClientOptions
    from broker.routing.router import Router

# (subject, queue, sid, delivered, max)
Subscription = tuple[bytes, bytes, bytes, int, int]


class Counted(Protocol):
    """Messages and bytes from and to one connection."""

    @property
    def in_msgs(self) -> int: ...
    @property
    def in_bytes(self) -> int: ...
    @property
    def out_msgs(self) -> int: ...
    @property
    def out_bytes(self) -> int: ...


class Connection(Counted, Protocol):
    """A client, or a server that is joined to us as a leaf."""

    @property
    def client_id(self) -> int: ...
    @property
    def kind(self) -> str: ...  # STANDARD, WEBSOCKET, LEAFNODE ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def account(self) -> AccountView | None: ...
    @property
    def identity(self) -> Identity | None: ...
    @property
    def options(self) -> ClientOptions | None: ...
    @property
    def tls_peer(self) -> TlsPeer | None: ...
    @property
    def start_ns(self) -> int: ...  # wall clock
    @property
    def active_ns(self) -> int: ...  # monotonic
    @property
    def rtt_ns(self) -> int: ...  # 0 = not known
    @property
    def subscriptions(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def closed_because(self) -> str | None: ...
    def list_subs(self, most: int = ...) -> list[Subscription]: ...


class Link(Connection, Protocol):
    """A server that is joined to us as a leaf."""

    @property
    def remote_name(self) -> str: ...  # of the other server
    @property
    def is_spoke(self) -> bool: ...  # we joined it


class AccountView(Protocol):
    """A subject space."""

    @property
    def name(self) -> str: ...
    @property
    def router(self) -> Router: ...
    @property
    def sessions(self) -> Collection[Any]: ...
    @property
    def leafs(self) -> Collection[Any]: ...
    @property
    def config(self) -> Any: ...  # settings.Account, or None
    @property
    def slow_consumers(self) -> int: ...
    def traffic(self) -> tuple[int, int, int, int]: ...


class FaceView(Protocol):
    """What all clients' connections have in common."""

    @property
    def total_connections(self) -> int: ...
    @property
    def slow_consumers(self) -> int: ...
    def traffic(self) -> tuple[int, int, int, int]: ...


class GateView(Protocol):
    """What is said to whoever connects."""

    @property
    def info(self) -> Mapping[str, Any]: ...


class ServerView(Protocol):
    """All of it."""

    @property
    def settings(self) -> Settings: ...
    @property
    def server_id(self) -> str: ...
    @property
    def server_name(self) -> str: ...
    @property
    def start_ns(self) -> int: ...  # wall clock
    @property
    def reload_ns(self) -> int: ...  # when the settings were last read
    @property
    def starting(self) -> bool: ...
    @property
    def lame(self) -> bool: ...  # nobody is let in any more
    @property
    def ports(self) -> Mapping[str, tuple[str, int]]: ...  # nats, monitor, leafnodes ...
    @property
    def accounts(self) -> Mapping[str, AccountView]: ...
    @property
    def system_account(self) -> AccountView | None: ...
    @property
    def operator(self) -> Any: ...  # OperatorLink, or None
    @property
    def sessions(self) -> Collection[Connection]: ...
    @property
    def closed(self) -> ClosedConnections: ...
    @property
    def face(self) -> FaceView: ...
    @property
    def gate(self) -> GateView: ...


def links(server: ServerView) -> Iterator[Link]:
    """Servers that are joined to us as leafs, in the order of their accounts."""
    for account in server.accounts.values():
        yield from account.leafs


def subscription_count(server: ServerView) -> int:
    """In all accounts, our own ones among them."""
    return sum(account.router.size for account in server.accounts.values())
