"""Interfaces through which monitoring pages and the system account read the server.

NatsServer, Account and NatsSession implement these protocols; a LeafSession implements Link.
Everything is read on the loop's thread.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from broker.base.values import dataclass
from broker.protocols.nats.accounts.asking import Bus, ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from broker.protocols.nats.auth.authenticator import Identity, TlsPeer
    from broker.protocols.nats.monitoring.options import HealthzOptions, JszOptions
    from broker.protocols.nats.monitoring.process import CpuMeter
    from broker.protocols.nats.settings import Settings
    from broker.protocols.nats.wire.options import ClientOptions
    from broker.routing.router import Router

# (subject, queue, sid, delivered, max)
Subscription = tuple[bytes, bytes, bytes, int, int]

# --- connections ---------------------------------------------------------------------------------


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


class SessionView(Counted, Protocol):
    """A client or leaf node: the fields used by advisories."""

    @property
    def client_id(self) -> int: ...
    @property
    def kind(self) -> str: ...  # STANDARD, WEBSOCKET, LEAFNODE ...
    @property
    def host(self) -> str: ...
    @property
    def account(self) -> LocalAccount | None: ...
    @property
    def identity(self) -> Identity | None: ...
    @property
    def options(self) -> ClientOptions | None: ...  # None: no CONNECT yet
    @property
    def start_ns(self) -> int: ...  # wall clock
    @property
    def rtt_ns(self) -> int: ...  # 0 = not known
    @property
    def closed_because(self) -> str | None: ...


class Connection(SessionView, Protocol):
    """A client or leaf node: the fields used by the monitoring pages."""

    @property
    def port(self) -> int: ...
    @property
    def tls_peer(self) -> TlsPeer | None: ...
    @property
    def active_ns(self) -> int: ...  # monotonic
    @property
    def subscriptions(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    def list_subs(self, most: int = ...) -> list[Subscription]: ...
    def list_removed_subs(self, most: int) -> list[Subscription]: ...


class Link(Connection, Protocol):
    """A leaf node connection, in either direction."""

    @property
    def remote_name(self) -> str: ...  # of the other server
    @property
    def is_spoke(self) -> bool: ...  # this server joined it
    @property
    def isolated(self) -> bool: ...  # it does not hear of other leafs' subscriptions
    @property
    def compression(self) -> str: ...  # its level, or why there is none


@dataclass(slots=True)
class ClosedConnection:
    """A closed connection: the fields of an open one that pages show."""

    client_id: int
    kind: str
    host: str
    port: int
    start_ns: int  # wall clock, as are the next two
    last_ns: int
    stop_ns: int
    reason: str
    rtt_ns: int
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    subscriptions: int
    name: str
    lang: str
    version: str
    tls_version: str
    tls_cipher: str
    tls_first: bool
    user: str
    account: str  # "": it was never admitted
    jwt: str = field(repr=False)
    issuer_key: str
    name_tag: str
    tags: tuple[str, ...]
    proxy_key: str  # of the trusted proxy that it came through
    subs: list[Subscription] = field(repr=False)  # grows while they are removed
    subs_kept: int  # its length at the end of that


class ClosedView(Protocol):
    """The last closed connections, oldest first."""

    @property
    def total(self) -> int: ...  # since start
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[ClosedConnection]: ...


# --- accounts ------------------------------------------------------------------------------------


class SubjectSpace(Protocol):
    """An account: its subjects and sessions."""

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


class AccountView(SubjectSpace, Protocol):
    """An account with its counters, for the monitoring pages."""

    @property
    def slow_consumers(self) -> int: ...
    def traffic(self) -> tuple[int, int, int, int]: ...
    def leaf_traffic(self) -> tuple[int, int, int, int]: ...


class LocalAccount(SubjectSpace, Bus, Protocol):
    """An account in which the server itself publishes and subscribes."""

    def interest(self, subject: bytes) -> int: ...  # number of matching subscriptions


class Message(ReceivedMessage, Protocol):
    """A message for a subscription of the server itself; its data excludes the headers."""

    @property
    def reply(self) -> bytes: ...
    @property
    def headers(self) -> bytes: ...
    @property
    def session(self) -> SessionView | None: ...  # the publisher


# --- JetStream -----------------------------------------------------------------------------------


class JetStreamView(Protocol):
    """The service for JetStream clients, as pages and INFO show it."""

    def info(self) -> dict[str, Any]: ...  # fields of INFO
    def varz(self) -> dict[str, Any]: ...  # the block `jetstream`
    def jsz(self, options: JszOptions) -> dict[str, Any]: ...
    # A failed check of /healthz: its status, and the error with its type and names.
    def problem(self, options: HealthzOptions) -> tuple[int, dict[str, str]] | None: ...
    def accounts_changed(self) -> None: ...  # accounts or their limits, by a reload
    def serves(self, account: str) -> bool: ...  # whether it is enabled for that account


# --- the server ----------------------------------------------------------------------------------


class AccountsView(Protocol):
    """All accounts; in operator mode, their names are public keys."""

    @property
    def accounts(self) -> Mapping[str, LocalAccount]: ...
    @property
    def jetstream(self) -> JetStreamView | None: ...


class FrontendView(Protocol):
    """State shared by all clients' connections."""

    @property
    def total_connections(self) -> int: ...
    @property
    def slow_consumers(self) -> int: ...
    @property
    def stale(self) -> int: ...
    @property
    def stalls(self) -> int: ...
    def traffic(self) -> tuple[int, int, int, int]: ...


class HandshakeView(Protocol):
    """The source of INFO."""

    @property
    def info(self) -> Mapping[str, Any]: ...


class ServerView(Protocol):
    """The whole server."""

    @property
    def settings(self) -> Settings: ...
    @property
    def server_id(self) -> str: ...
    @property
    def server_name(self) -> str: ...
    @property
    def start_ns(self) -> int: ...  # wall clock
    @property
    def reload_ns(self) -> int: ...  # last time the settings were read
    @property
    def starting(self) -> bool: ...
    @property
    def lame(self) -> bool: ...  # connections are no longer accepted
    @property
    def ports(self) -> Mapping[str, tuple[str, int]]: ...  # nats, monitor, leafnodes ...
    @property
    def accounts(self) -> Mapping[str, AccountView]: ...
    @property
    def system_account(self) -> AccountView | None: ...
    @property
    def operator(self) -> Any: ...  # OperatorLink, or None
    @property
    def jetstream(self) -> JetStreamView | None: ...
    @property
    def sessions(self) -> Collection[Connection]: ...
    @property
    def closed(self) -> ClosedView: ...
    @property
    def frontend(self) -> FrontendView: ...
    @property
    def handshake(self) -> HandshakeView: ...
    @property
    def cpu(self) -> CpuMeter: ...


def links(server: ServerView) -> Iterator[Link]:
    """All leaf node connections, in the order of their accounts."""
    for account in server.accounts.values():
        yield from account.leafs


def subscription_count(server: ServerView) -> int:
    """The number of subscriptions in all accounts, including the server's own."""
    return sum(account.router.size for account in server.accounts.values())
