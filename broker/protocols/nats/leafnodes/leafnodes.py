"""Leaf nodes of a server: the listener for servers that join it, and the remotes that it joins."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from broker.net.listener import Listener
from broker.net.sockets import join
from broker.protocols.nats import errors
from broker.protocols.nats.auth.authenticator import Identity, Refused
from broker.protocols.nats.context import server_info
from broker.protocols.nats.leafnodes import limits
from broker.protocols.nats.leafnodes.handshake import LeafHandshake
from broker.protocols.nats.leafnodes.interest import mapped_subjects
from broker.protocols.nats.leafnodes.remote import RemoteLink
from broker.protocols.nats.leafnodes.session import LeafSession
from broker.protocols.nats.listener import ANY_HOST, LEAF
from broker.protocols.nats.tls import TlsPolicy
from broker.protocols.nats.wire.options import advertised

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.auth.authenticator import TlsPeer
    from broker.protocols.nats.context import NatsContext
    from broker.protocols.nats.settings import Leafnodes


log = logging.getLogger("broker.nats")


class LeafListener(Listener):
    """Accepts leaf node connections."""

    def __init__(self, handshake: LeafHandshake, listen: tuple[str, int]) -> None:
        super().__init__(handshake.context.runtime, listen, limits.NATS_LEAF_PENDING)
        self.handshake = handshake

    def new_session(self) -> LeafSession:
        return LeafSession(self.handshake.context.frontend, self.handshake)

    def new_websocket_session(self, peer: TlsPeer | None) -> LeafSession:
        """The session of a link that the WebSocket listener accepted."""
        return LeafSession(self.handshake.context.frontend, self.handshake, None, LEAF, peer)


class LeafNodes:
    """The leaf nodes of one server, created, started and stopped by it."""

    def __init__(self, context: NatsContext) -> None:
        self.context = context
        self.handshake = LeafHandshake(context)
        self.listener: LeafListener | None = None
        self.remotes: list[RemoteLink] = []
        self._dialling = False
        self._announced_cluster: str | None = None  # its last announced name, after the start

    @property
    def config(self) -> Leafnodes:
        """The configured settings, or the defaults."""
        return self.handshake.config

    def adopt(self, account: Account) -> None:
        """Count the subscriptions of an account with links; for new accounts and mappings."""
        config = self.config
        if config.listen is not None or any(one.account == account.name for one in config.remotes):
            self.handshake.interests.of(account).announce_mapped(mapped_subjects(account))

    def configure(self) -> None:
        """Apply the current certificates, mappings and remotes, but not the address."""
        tls = self.config.tls
        if self.config.listen is not None and tls is not None:
            self.handshake.tls = TlsPolicy(tls, former=self.handshake.tls)
        if self._announced_cluster not in {None, self.handshake.cluster}:
            self._rename()
        if self._dialling:
            self._update_remotes()
        for session in list(self.handshake.sessions):
            self.handshake.compress_again(session)
        self.handshake.interests.refresh(set(self.context.accounts.values()))

    def _update_remotes(self) -> None:
        """Disconnect from servers that are no longer configured, and connect to new ones."""
        configured = {remote.key: remote for remote in self.config.remotes}
        for link in list(self.remotes):
            remote = configured.pop(link.config.key, None)
            if remote is None:
                self.remotes.remove(link)
                link.leave()
            else:
                link.reconfigure(remote)
        for remote in configured.values():
            link = RemoteLink(self.handshake, remote)
            self.remotes.append(link)
            link.start()

    async def recheck(self, sessions: Iterable[LeafSession] | None = None) -> None:
        """Close links whose login is no longer valid or now has other permissions (the peer may
        reconnect), and the newest links of an account over its limit. `sessions`: None = all."""
        clients = self.context.handshake
        rechecked = list(self.handshake.sessions if sessions is None else sessions)
        for session in rechecked:
            account = session.account
            if session.link is None or account is None or session.ending:
                continue
            if clients.account(account.name) is not account:
                session.end(None, errors.NATS_CLOSED_MISSING_ACCOUNT)
            if session.identity is None or session.ending:
                continue
            try:
                answer = clients.identify_again(
                    session.identity, self.handshake.acceptor.login(session)
                )
                identity = answer if isinstance(answer, Identity) else await answer
            except Refused as refusal:
                session.end(None if refusal.silent else refusal.error, refusal.why)
                continue
            if identity != session.identity and session.link is not None:
                session.end(None, errors.NATS_CLOSED_AUTHENTICATION)
        for account in {one.account for one in rechecked if one.account is not None}:
            links = sorted(
                (one for one in account.leafs if not one.ending), key=lambda one: one.client_id
            )
            for session in links[account.leafs_max :] if account.leafs_max >= 0 else ():
                session.end(errors.NATS_ACCOUNT_CONNECTIONS, errors.NATS_CLOSED_ACCOUNT_CONNECTIONS)

    # --- life cycle

    async def start(self) -> None:
        """Open the listener, if any, and dial the remotes; OSError if the address is in use."""
        if self.config.listen is not None:
            self.configure()
            self.listener = LeafListener(self.handshake, self.config.listen)
            await self.listener.open()
            host, port = self.listener.address
            self.update_info(host, port)
            if self.config.advertise:
                shown = self.handshake.own_info["ip"]
                log.info("Advertise address for leafnode is set to %s", shown)
        self._announced_cluster = self.handshake.cluster
        self._dialling = True
        self._update_remotes()

    def _rename(self) -> None:
        """Reconnect to the hubs after a change of the cluster's name, to announce the new one."""
        self._announced_cluster = self.handshake.cluster
        self.handshake.own_info.pop("cluster", None)
        if self.handshake.cluster:
            self.handshake.own_info["cluster"] = self.handshake.cluster
        for session in list(self.handshake.sessions):
            if session.remote is not None:
                session.end(None, errors.NATS_CLOSED_CLUSTER)

    def update_info(self, host: str, port: int) -> None:
        """Build the INFO for servers that join this one."""
        context = self.context
        config = self.config
        shown, shown_port = advertised(config.advertise, (public_address(host), port))
        address = join(shown, shown_port)
        self.handshake.own_info = {
            **server_info(
                context.server_id,
                context.server_name,
                (shown, shown_port),
                headers=not context.settings.no_header_support,
                max_payload=context.settings.max_payload,
            ),
            "auth_required": True,
            "ip": address,
            "info_on_connect": True,
            "leafnode_urls": [address],
        }
        if self.handshake.cluster:
            self.handshake.own_info["cluster"] = self.handshake.cluster
        if self.handshake.tls is not None:
            self.handshake.own_info |= self.handshake.tls.info()

    async def close(self) -> None:
        """Stop accepting and dialling; open links are kept."""
        self._dialling = False
        if self.listener is not None:
            await self.listener.close()
        await asyncio.gather(*(remote.stop() for remote in self.remotes))

    async def stop(self) -> None:
        """End every link after its pending output is written."""
        await self.close()
        for session in list(self.handshake.sessions):
            session.closing_down()
        if self.listener is not None:
            await self.listener.drain()
        await asyncio.gather(*(remote.drain() for remote in self.remotes))
        for task in list(self.handshake.tasks):
            task.cancel()
        await asyncio.gather(*self.handshake.tasks, return_exceptions=True)


def public_address(host: str) -> str:
    """An address at which other servers reach this one, even if it listens on all interfaces."""
    if host not in {"", ANY_HOST, "::"}:
        return host
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(("2001:db8::1" if host == "::" else "192.0.2.1", 9))  # UDP: sends no packet
        return str(probe.getsockname()[0])
    return host or ANY_HOST
