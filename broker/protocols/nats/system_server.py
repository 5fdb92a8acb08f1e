"""The system account of a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.protocols.nats import errors, limits
from broker.protocols.nats.system import errors as errors_system
from broker.protocols.nats.system.envelope import Envelope, Who
from broker.protocols.nats.system.requests import Actions
from broker.protocols.nats.system.system import System
from broker.protocols.nats.system_view import Station

if TYPE_CHECKING:
    from broker.protocols.nats.auth.authenticator import Login
    from broker.protocols.nats.client.session import NatsSession
    from broker.protocols.nats.leafnodes.session import LeafSession
    from broker.protocols.nats.server import NatsServer


def who_is(server: NatsServer) -> Who:
    """What the server block says."""
    return Who(
        server.server_name,
        server.gate.info["host"],
        server.server_id,
        limits.NATS_VERSION,
        cluster=server.settings.cluster,
        tags=server.settings.server_tags,
    )


def open_system(server: NatsServer) -> System | None:
    """Start it, when the server's door is open; None where there is no system account."""
    account = server.system_account
    if account is None:
        return None
    deeds = _Deeds(server)
    system = System(
        Station(server, account, Envelope(who_is(server)), server.pages),
        Actions(deeds.reload, deeds.kick, deeds.lame_duck),
    )
    system.start()
    return system


def tell_system(server: NatsServer) -> None:
    """From here on the server's system account, if it has one, hears who comes and goes."""

    def joined(session: NatsSession | LeafSession) -> None:
        if server.system is not None:
            server.system.connected(session)

    def left(session: NatsSession | LeafSession) -> None:
        if server.system is not None:
            why = session.closed_because or errors.NATS_CLOSED_CLIENT
            server.system.disconnected(session, why)

    def refused(session: NatsSession | LeafSession, _login: Login, _detail: str) -> None:
        if server.system is not None:
            server.system.refused(session)

    server.gate.on_connect.append(joined)
    server.gate.on_leave.append(left)
    server.gate.on_refuse.append(refused)
    server.leafs.on_join.append(joined)
    server.leafs.on_leave.append(left)
    server.leafs.on_refuse.append(refused)


def renew_system(server: NatsServer) -> None:
    """The settings are others: the same service with another name, or another service."""
    system = server.system
    if system is not None and system.account is server.system_account:
        system.rename(who_is(server))
        return
    if system is not None:
        system.stop()
    server.system = open_system(server)


class _Deeds:
    """What requests make the server do."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server

    async def reload(self) -> str:
        """Let the configuration file hold as it is now."""
        if self.server.reread is None:
            return errors_system.RELOAD_NO_FILE
        return await self.server.reread()

    def _client(self, client_id: int) -> NatsSession | None:
        return next((s for s in self.server.sessions if s.client_id == client_id), None)

    def kick(self, client_id: int) -> str:
        """Close it; a server that joined as a leaf may be meant too."""
        client = self._client(client_id)
        leafs = (leaf for account in self.server.accounts.values() for leaf in account.leafs)
        peer = client or next((leaf for leaf in leafs if leaf.client_id == client_id), None)
        if peer is None:
            return errors_system.KICK_UNKNOWN
        peer.kick()
        return ""

    def lame_duck(self, client_id: int) -> str:
        """Tell it to go elsewhere."""
        client = self._client(client_id)
        if client is None:
            return errors_system.LAME_DUCK_UNKNOWN
        options = client.options
        if options is None or options.protocol < 1 or not client.ponged:
            return errors_system.LAME_DUCK_UNABLE
        client.send(self.server.gate.info_line(client, ldm=True))
        return ""
