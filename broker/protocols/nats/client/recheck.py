"""Checks every open connection again after a reload, a few at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.protocols.nats import errors, limits
from broker.protocols.nats.auth.authenticator import Identity, Refused
from broker.protocols.nats.client.handshake import apply_rate_limits
from broker.protocols.nats.client.permissions import permit_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.client.handshake import ClientHandshake
    from broker.protocols.nats.client.session import NatsSession

log = logging.getLogger("broker.nats")


class Recheck:
    """One pass over all sessions of a server."""

    def __init__(self, handshake: ClientHandshake) -> None:
        self.handshake = handshake

    async def run(self, sessions: Iterable[NatsSession] | None = None) -> None:
        """Check all sessions; returns when each one has its current permissions or is closed. None:
        all sessions of the server."""
        later: list[tuple[NatsSession, Awaitable[Identity]]] = []
        for at, session in enumerate(
            list(self.handshake.frontend.sessions if sessions is None else sessions)
        ):
            if at % limits.NATS_RECHECK_BATCH == limits.NATS_RECHECK_BATCH - 1:
                await asyncio.sleep(0)  # let messages flow meanwhile
            answer = self._check(session)
            if answer is not None:
                later.append((session, answer))
        for session, waiting in later:  # passwords to compare with a changed hash
            try:
                self._apply(session, await waiting)
            except Refused as refusal:
                self._close(session, refusal)
        self._close_above_limit()
        for account in list(self.handshake.accounts.values()):
            self._close_above_account_limit(account)

    def _check(self, session: NatsSession) -> Awaitable[Identity] | None:
        if session.link is None or session.tls_handshake is not None:
            return None
        if not self._certificate_is_pinned(session):
            session.end(None, errors.NATS_CLOSED_TLS)
            return None
        if session.identity is None:  # it has not logged in yet
            if self.handshake.authenticator.requires_login(session.kind) and not session.waiting:
                session.expect_login(self.handshake.login_timeout_ns)
            return None
        try:
            answer = self.handshake.identify_again(session.identity, self.handshake.login(session))
        except Refused as refusal:
            self._close(session, refusal)
            return None
        if not isinstance(answer, Identity):
            return answer
        self._apply(session, answer)
        return None

    def _certificate_is_pinned(self, session: NatsSession) -> bool:
        tls, peer = self.handshake.tls, session.tls_peer
        if tls is None or peer is None or session.websocket_peer is not None:
            return True
        return tls.admits(peer.der)

    def _apply(self, session: NatsSession, identity: Identity) -> None:
        if session.link is None:
            return
        account = self.handshake.account(identity.account)
        if account is None or account is not session.account:
            session.end(None, errors.NATS_CLOSED_AUTHENTICATION)
            return
        if session.identity == identity:
            session.apply_limits(identity)
            session.end_above_limit()
        else:
            session.bind(account, identity, permit_for(identity.permissions))
            session.prune()
        apply_rate_limits(session, account, identity)

    def _close(self, session: NatsSession, refusal: Refused) -> None:
        """Close a connection whose login is no longer valid."""
        if session.link is None or session.closed_because is not None:
            return
        if refusal.error is errors.NATS_AUTHORIZATION and not refusal.silent:
            self.handshake.reject(session, self.handshake.login(session), refusal)
        else:
            session.end(None if refusal.silent else refusal.error, refusal.why)

    @staticmethod
    def _close_above_account_limit(account: Account) -> None:
        """Close the newest connections above a lowered limit of their account."""
        most = account.connections_max
        if not 0 <= most < len(account.sessions):
            return
        left = [session for session in account.sessions if session.closed_because is None]
        for session in sorted(left, key=lambda one: one.start_ns)[most:]:
            session.end(errors.NATS_ACCOUNT_CONNECTIONS, errors.NATS_CLOSED_ACCOUNT_CONNECTIONS)

    def _close_above_limit(self) -> None:
        """Close connections above a lowered limit."""
        most = self.handshake.frontend.connections_max
        sessions = self.handshake.frontend.sessions
        many = len(sessions) - most
        if many <= 0:
            return
        for session in list(sessions)[:many]:
            session.end(errors.NATS_CONNECTIONS, errors.NATS_CLOSED_CONNECTIONS)
        log.info("Closed %d connections to fall within max_connections", many)
