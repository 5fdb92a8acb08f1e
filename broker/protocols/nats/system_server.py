"""The system account of a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import errors, limits
from broker.protocols.nats.system import System
from broker.protocols.nats.system_envelope import Envelope, Who
from broker.protocols.nats.system_requests import Actions
from broker.protocols.nats.system_view import Pages, Station

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.protocols.nats.login import Login
    from broker.protocols.nats.server import NatsServer
    from broker.protocols.nats.session import NatsSession


def who_is(server: NatsServer) -> Who:
    """What the server block says."""
    return Who(
        server.server_name,
        server.gate.info["host"],
        server.server_id,
        limits.NATS_VERSION,
        cluster=getattr(server.settings, "cluster_name", ""),
        tags=server.settings.server_tags,
    )


def open_system(
    server: NatsServer, pages: Pages, reload: Callable[[], Awaitable[None]] | None = None
) -> System | None:
    """Start it, when the server's door is open; None where there is no system account.

    `reload` reads the configuration file anew; a server without one has none.
    """
    account = server.system_account
    if account is None:
        return None
    deeds = _Deeds(server)
    system = System(
        Station(server, account, Envelope(who_is(server)), pages),
        Actions(reload, deeds.kick, deeds.lame_duck),
    )

    def left(session: NatsSession) -> None:
        system.disconnected(session, session.closed_because or errors.NATS_CLOSED_CLIENT)

    def refused(session: NatsSession, _login: Login, _detail: str) -> None:
        system.refused(session)

    server.gate.on_connect.append(system.connected)
    server.gate.on_leave.append(left)
    server.gate.on_refuse.append(refused)
    system.start()
    return system


class _Deeds:
    """What a request can do to one client."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server

    def _client(self, client_id: int) -> NatsSession | None:
        return next((s for s in self.server.sessions if s.client_id == client_id), None)

    def kick(self, client_id: int) -> str:
        """Close it; a server that joined as a leaf may be meant too."""
        client = self._client(client_id)
        leafs = (leaf for account in self.server.accounts.values() for leaf in account.leafs)
        peer = client or next((leaf for leaf in leafs if leaf.client_id == client_id), None)
        if peer is None:
            return errors.NATS_KICK_UNKNOWN
        peer.kick()
        return ""

    def lame_duck(self, client_id: int) -> str:
        """Tell it to go elsewhere."""
        client = self._client(client_id)
        if client is None:
            return errors.NATS_LAME_DUCK_UNKNOWN
        options = client.options
        if options is None or options.protocol < 1 or not client.ponged:
            return errors.NATS_LAME_DUCK_UNABLE
        client.send(self.server.gate.info_line(client, ldm=True))
        return ""
