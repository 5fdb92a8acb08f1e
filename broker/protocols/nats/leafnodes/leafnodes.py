"""Leaf nodes of a server: those that join it, and those it joins."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

from broker.base.units import SECOND
from broker.protocols.nats import errors, limits
from broker.protocols.nats.auth.authenticator import Identity, Refused
from broker.protocols.nats.leafnodes.door import LeafDoor
from broker.protocols.nats.leafnodes.handshake import LeafGate
from broker.protocols.nats.leafnodes.interest import Interest
from broker.protocols.nats.leafnodes.remote import RemoteLink
from broker.protocols.nats.listener import ANY_HOST
from broker.protocols.nats.settings import Leafnodes
from broker.protocols.nats.tls import TlsPolicy
from broker.protocols.nats.wire.options import server_info

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.auth.authenticator import Login
    from broker.protocols.nats.leafnodes.session import LeafSession
    from broker.protocols.nats.server import NatsServer

log = logging.getLogger("broker.nats")


class LeafNodes:
    """Made by the server, started and stopped with it."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.sessions: set[LeafSession] = set()  # every connection, also before its login
        self.on_join: list[Callable[[LeafSession], object]] = []  # a link works
        self.on_refuse: list[Callable[[LeafSession, Login, str], object]] = []
        self.on_leave: list[Callable[[LeafSession], object]] = []  # whether or not it worked
        self.info: dict[str, Any] = {}
        self._told_cluster: str | None = None  # its name, from the start on
        self.door: LeafDoor | None = None
        self.remotes: list[RemoteLink] = []
        self.gate = LeafGate(self)
        self.tls: TlsPolicy | None = None  # of the door
        self._interests: dict[Account, Interest] = {}

    @property
    def config(self) -> Leafnodes:
        """What is configured, or the defaults."""
        return self.server.settings.leafnodes or Leafnodes()

    @property
    def cluster(self) -> str:
        """The name of our cluster; a server that joins others is a cluster of its own."""
        own_name = self.server.server_name if self.config.remotes else ""
        return self.server.settings.cluster or own_name

    def interest_of(self, account: Account) -> Interest:
        """What the links of this account announce."""
        if account not in self._interests:
            self._interests[account] = Interest(account)
            self._interests[account].force(mapped_subjects(account))
        return self._interests[account]

    @property
    def counted(self) -> Collection[Account]:
        """Accounts of which it is known what is wanted there."""
        return self._interests.keys()

    def adopt(self, account: Account) -> None:
        """An account is new, or its mappings are: if it may have links, count who wants what."""
        config = self.config
        if config.listen is not None or any(one.account == account.name for one in config.remotes):
            self.interest_of(account).force(mapped_subjects(account))

    def configure(self) -> None:
        """Settings are others now. Addresses and remotes stay, certificates and mappings change."""
        tls = self.config.tls
        if self.config.listen is not None and tls is not None:
            self.tls = TlsPolicy(tls, former=self.tls)
        if self._told_cluster not in {None, self.cluster}:
            self._rename()
        for link, remote in zip(self.remotes, self.config.remotes, strict=False):
            if link.config.urls == remote.urls:
                link.config = remote
        there = set(self.server.accounts.values())
        for account, interest in list(self._interests.items()):
            if account not in there and not interest.links:
                del self._interests[account]
            interest.force(mapped_subjects(account))

    async def recheck(self, sessions: Iterable[LeafSession] | None = None) -> None:
        """Close the links whose login does not hold any more, or holds for something else (they
        come back if they may), and the newest of an account that may have fewer. None: all."""
        gate = self.server.gate
        rechecked = list(self.sessions if sessions is None else sessions)
        for session in rechecked:
            account = session.account
            if session.link is None or account is None or session.ending:
                continue
            if gate.account(account.name) is not account:
                session.end(None, errors.NATS_CLOSED_MISSING_ACCOUNT)
            if session.identity is None or session.ending:
                continue
            try:
                answer = gate.authenticator.check_again(
                    session.identity, self.gate.acceptor.login(session)
                )
                identity = answer if isinstance(answer, Identity) else await answer
            except Refused as refusal:
                session.end(None if refusal.silent else refusal.error, refusal.why)
                continue
            if identity != session.identity and session.link is not None:
                session.end(None, errors.NATS_CLOSED_AUTHENTICATION)
        for account in {one.account for one in rechecked if one.account is not None}:
            there = sorted(
                (one for one in account.leafs if not one.ending), key=lambda one: one.client_id
            )
            for session in there[account.leafs_max :] if account.leafs_max >= 0 else ():
                session.end(errors.NATS_ACCOUNT_CONNECTIONS, errors.NATS_CLOSED_ACCOUNT_CONNECTIONS)

    # --- life

    async def start(self) -> None:
        """Open the door, if there is one, and dial; OSError when the address is taken."""
        if self.config.listen is not None:
            self.configure()
            self.door = LeafDoor(self, self.config.listen)
            await self.door.open()
            host, port = self.door.address
            self._tell(host, port)
            if self.config.advertise:
                log.info("Advertise address for leafnode is set to %s", self.info["ip"])
        self._told_cluster = self.cluster
        self.remotes = [RemoteLink(self, remote) for remote in self.config.remotes]
        for remote in self.remotes:
            remote.start()

    def _rename(self) -> None:
        """Our cluster has another name: those that we join have to hear of it."""
        self._told_cluster = self.cluster
        self.info.pop("cluster", None)
        if self.cluster:
            self.info["cluster"] = self.cluster
        for session in list(self.sessions):
            if session.remote is not None:
                session.end(None, errors.NATS_CLOSED_CLUSTER)

    def _tell(self, host: str, port: int) -> None:
        """Work out INFO."""
        server = self.server
        config = self.config
        shown, shown_port = public_address(host), port
        if config.advertise:
            name, _, number = config.advertise.rpartition(":")
            shown, shown_port = (name, int(number)) if name else (number, port)
        place = _join(shown, shown_port)
        self.info = {
            **server_info(
                server.server_id,
                server.server_name,
                (shown, shown_port),
                headers=not server.settings.no_header_support,
                max_payload=server.settings.max_payload,
            ),
            "auth_required": True,
            "ip": place,
            "info_on_connect": True,
            "leafnode_urls": [place],
        }
        if self.cluster:
            self.info["cluster"] = self.cluster
        if self.tls is not None:
            self.info |= self.tls.info()

    async def close(self) -> None:
        """Accept nobody any more, dial nobody; links stay."""
        if self.door is not None:
            await self.door.close()
        await asyncio.gather(*(remote.stop() for remote in self.remotes))

    async def stop(self) -> None:
        """End every link when what waits for it is written."""
        await self.close()
        for session in list(self.sessions):
            session.closing_down()
        if self.door is not None:
            await self.door.drain()
        await asyncio.gather(*(remote.drain() for remote in self.remotes))
        for task in list(self.gate.tasks):
            task.cancel()
        await asyncio.gather(*self.gate.tasks, return_exceptions=True)

    # --- called by the gate

    @property
    def login_timeout_ns(self) -> int:
        """From INFO, or the end of the TLS handshake, to CONNECT."""
        own = self.config.authorization
        if own is not None and own.timeout_ns:
            return own.timeout_ns
        if self.config.tls is not None:
            return self.config.tls.timeout_ns + SECOND
        return limits.NATS_AUTH_TIMEOUT


def mapped_subjects(account: Account) -> tuple[bytes, ...]:
    """Subjects that an account takes in to publish them elsewhere."""
    return () if account.mapper is None else account.mapper.sources


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def public_address(host: str) -> str:
    """An address under which others find one who listens everywhere."""
    if host not in {"", ANY_HOST, "::"}:
        return host
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(("2001:db8::1" if host == "::" else "192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])
    return host or ANY_HOST
