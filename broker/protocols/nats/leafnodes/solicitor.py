"""The side of a leaf link that dialled: what the other one says, and what we say to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.protocols.nats import errors as nats_errors
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.leafnodes import errors, limits
from broker.protocols.nats.leafnodes.hello import (
    CredentialsError,
    PeerInfo,
    connect_line,
    denied,
    sign_in,
)
from broker.protocols.nats.tls import peer_of
from broker.protocols.nats.trace import who

if TYPE_CHECKING:
    from broker.protocols.nats.leafnodes.handshake import LeafGate
    from broker.protocols.nats.leafnodes.session import LeafSession
    from broker.protocols.nats.settings import Rules

log = logging.getLogger("broker.nats")


class Solicitor:
    """Its part of the gate."""

    def __init__(self, gate: LeafGate) -> None:
        self.gate = gate
        self.nodes = gate.nodes

    def opened(self, session: LeafSession) -> None:
        """Belong to an account, and wait for INFO."""
        assert session.remote is not None
        account = self.nodes.server.gate.account(session.remote.config.account)
        if account is None:
            log.error(
                "Unable to lookup account %s for solicited leafnode connection",
                session.remote.config.account,
            )
            session.end(None, nats_errors.NATS_CLOSED_MISSING_ACCOUNT)
            return
        log.info("%s - Leafnode connection created for account: %s", who(session), account.name)
        self.gate.bind(session, account, None)
        session.hurry(limits.NATS_LEAF_INFO)
        if session.remote.tls_first:
            session.remote.secure(session)

    def info(self, session: LeafSession, raw: bytes) -> None:
        """INFO of the server that we join."""
        try:
            info = PeerInfo.read(raw)
        except ValueError:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)
            return
        remote = session.remote
        assert remote is not None
        if not session.greeted and (not info.client_id or info.urls is None):
            log.error("%s - %s", who(session), errors.NATS_LEAF_WRONG_PORT)
            session.end(None, nats_errors.NATS_CLOSED_WRONG_PORT)
            return
        if info.urls:
            remote.learn(info.urls)
        if info.publish is not None or info.subscribe is not None:
            self._take_rights(session, info.publish, info.subscribe)
        if session.greeted:
            session.peer_account = info.remote_account or session.peer_account
            if info.connect_info:
                self._finish(session)
            return
        session.greeted = True
        session.nonce = info.nonce.encode()
        session.peer_name = info.name or info.server_id
        session.peer_cluster = info.cluster
        session.talks_headers(info.headers)
        if info.publish is None and info.subscribe is None:
            self._take_rights(session, None, None)
        remote.answered = info.info_on_connect
        if session.tls_peer is None and remote.wants_tls(asked=info.tls_required):
            remote.secure(session)
        else:
            self._introduce(session)

    def _take_rights(
        self, session: LeafSession, publish: Rules | None, subscribe: Rules | None
    ) -> None:
        assert session.remote is not None
        config = session.remote.config
        session.rights(denied(publish, config.deny_exports), denied(subscribe, config.deny_imports))

    def secured(self, session: LeafSession, cause: str | None) -> None:
        """TLS with a server that we join is there, or (cause) it is not."""
        assert session.remote is not None
        if cause is None and not session.remote.knows(session.link.certificate):
            cause = "certificate not pinned"
        if cause is not None:
            log.error("%s - TLS leafnode handshake error: %s", who(session), cause)
            session.end(None, nats_errors.NATS_CLOSED_TLS)
            return
        session.tls_peer = peer_of(session.link.security, session.link.certificate)
        if session.greeted:
            self._introduce(session)

    def _introduce(self, session: LeafSession) -> None:
        """Say CONNECT."""
        remote, account = session.remote, session.account
        assert remote is not None
        assert account is not None
        try:
            login = sign_in(remote.config, session.nonce or b"", *remote.user())
        except CredentialsError as problem:
            log.error("%s - %s", who(session), problem)
            session.end(None, nats_errors.NATS_CLOSED_AUTHENTICATION)
            return
        server = self.nodes.server
        session.send(
            connect_line(
                {
                    "version": nats_limits.NATS_VERSION,
                    **login,
                    "server_id": server.server_id,
                    "name": server.server_name,
                    "is_hub": remote.config.hub,
                    "cluster": self.nodes.cluster,
                    "headers": not server.settings.no_header_support,
                    "deny_pub": list(remote.config.deny_imports),
                    "remote_account": account.name,
                }
            )
        )
        session.hurry(limits.NATS_LEAF_ANSWER)
        if not remote.answered:
            self._finish(session)

    def _finish(self, session: LeafSession) -> None:
        """The hub knows us now, or we it."""
        account = session.account
        assert account is not None
        if session.ready or session.ending:
            return
        cluster = session.peer_cluster
        if cluster and any(
            leaf.peer_cluster == cluster and not leaf.spoke for leaf in account.leafs
        ):
            self.gate.loop(session)
            return
        if 0 <= account.leafs_max <= len(account.leafs):
            session.end(
                nats_errors.NATS_ACCOUNT_CONNECTIONS, nats_errors.NATS_CLOSED_ACCOUNT_CONNECTIONS
            )
            return
        session.begin()
        self.gate.begun(session)

    def late(self, session: LeafSession) -> None:
        """What was waited for has not come."""
        if session.greeted:
            session.end(errors.NATS_LEAF_STALE, nats_errors.NATS_CLOSED_STALE)
        else:
            session.end(None, nats_errors.NATS_CLOSED_READ)
