"""How two servers become hub and leaf.

    acceptor                                    solicitor, who dialled
    INFO nonce, leafnode_urls        -->
                                    (TLS)
                                     <--        CONNECT name, cluster, credentials, account
    (login, account, rights)
    INFO connect_info, rights, LS+   -->
                                     <--        LS+

Which of the two is the hub is another matter: the acceptor, unless the solicitor says `is_hub`.
Streams compressed with S2 are not offered, so nobody asks for one. Source: nats-server leafnode.go.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import orjson

from broker.base.gotext import go_quote
from broker.protocols.nats import errors as nats_errors
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.leafnodes import errors, limits
from broker.protocols.nats.leafnodes.acceptor import Acceptor
from broker.protocols.nats.leafnodes.solicitor import Solicitor
from broker.protocols.nats.trace import who
from broker.protocols.nats.wire.options import parse_object

if TYPE_CHECKING:
    import asyncio

    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.auth.authenticator import Identity
    from broker.protocols.nats.leafnodes.leafnodes import LeafNodes
    from broker.protocols.nats.leafnodes.session import LeafSession

log = logging.getLogger("broker.nats")


class LeafGate:
    """Called by the links."""

    def __init__(self, nodes: LeafNodes) -> None:
        self.nodes = nodes
        self.slow = 0  # links closed because the peer did not read
        self.pending_max = nodes.server.settings.max_pending
        self.tasks: set[asyncio.Task[None]] = set()  # logins that somebody is asked about
        self.acceptor = Acceptor(self)
        self.solicitor = Solicitor(self)

    # --- called by the links as their handshake goes on

    def opened(self, session: LeafSession) -> None:
        """A connection is made."""
        peer = session.link.peer
        session.host, session.port = peer[:2] if isinstance(peer, tuple) else ("", 0)
        self.nodes.sessions.add(session)
        side = self.acceptor if session.remote is None else self.solicitor
        side.opened(session)

    def connect(self, session: LeafSession, raw: bytes) -> None:
        """CONNECT."""
        if session.remote is None and session.options is None:
            self.acceptor.connect(session, raw)
        else:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)

    def info(self, session: LeafSession, raw: bytes) -> None:
        """INFO. What a server that joins us may do is ours to say."""
        if session.remote is not None:
            self.solicitor.info(session, raw)
            return
        try:
            parse_object(raw)
        except ValueError:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)

    def secured(self, session: LeafSession, cause: str | None) -> None:
        """TLS with a server that we join is there, or (cause) it is not."""
        self.solicitor.secured(session, cause)

    def refuse(self, session: LeafSession, reason: str) -> None:
        """Turn away somebody who did not even ask properly."""
        self.acceptor.refuse(session, reason)

    def info_line(self, session: LeafSession, **more: object) -> bytes:
        """INFO for this peer."""
        fields = {**self.nodes.info, "client_id": session.client_id, **more}
        return b"INFO " + orjson.dumps(fields) + b" \r\n"

    # --- for both sides of the handshake

    def bind(self, session: LeafSession, account: Account, identity: Identity | None) -> None:
        """Make it one of an account's."""
        server = self.nodes.server
        most = [server.settings.max_subscriptions or -1, account.subscriptions_max]
        if identity is not None:
            most.append(identity.subscriptions_max)
        most = [count for count in most if count >= 0]
        session.bind(
            account,
            self.nodes.interest_of(account),
            account is server.system_account,
            min(most) if most else -1,
        )

    def begun(self, session: LeafSession) -> None:
        """The handshake is over: tell the peer what is wanted here."""
        first = min(self.nodes.server.settings.ping_interval_ns, limits.NATS_LEAF_FIRST_PING)
        jitter = random.randrange(first // nats_limits.NATS_FIRST_PING_JITTER + 1)  # noqa: S311
        identity = session.identity
        session.ping_in(first + jitter, identity.expires_ns if identity is not None else 0)
        assert session.interest is not None
        session.interest.join(session)
        if session.remote is not None:
            session.remote.begun()
        for act in self.nodes.on_join:
            act(session)

    # --- called by the links later

    def late(self, session: LeafSession) -> None:
        """What was waited for has not come."""
        side = self.acceptor if session.remote is None else self.solicitor
        side.late(session)

    def told(self, session: LeafSession, raw: bytes) -> None:
        """-ERR of the peer."""
        text = "".join(c if c.isprintable() else "?" for c in raw.decode("utf-8", "replace"))
        text = text[: limits.NATS_LEAF_ERROR_SHOWN]
        log.error("%s - Leafnode Error %s", who(session), text)
        if errors.NATS_LEAF_CLUSTER.text in text:
            self._delay(session)
            log.error(
                "%s - Leafnode connection dropped with same cluster name error. "
                "Delaying attempt to reconnect for 30s",
                who(session),
            )
        elif errors.NATS_LEAF_LOOP_WORDS in text:
            self._delay(session)
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)

    def loop(self, session: LeafSession) -> None:
        """What it announces comes from ourselves."""
        account = session.account.name.encode() if session.account is not None else b""
        self._delay(session)
        log.error(
            "%s - %s",
            who(session),
            errors.NATS_LEAF_LOOP.text.format(account=go_quote(account)),
        )
        session.end(errors.NATS_LEAF_LOOP, nats_errors.NATS_CLOSED_PROTOCOL, account=account)

    def unwanted(self, session: LeafSession, subject: bytes) -> None:
        """It asks for what may not be sent to it."""
        if session.spoke:
            return  # our hub tells everybody; what we may not send stays here
        self._delay(session)
        log.error(
            "%s - Subscription Violation on %s - Check other side configuration",
            who(session),
            go_quote(subject),
        )
        session.end(errors.NATS_LEAF_UNWANTED, nats_errors.NATS_CLOSED_PROTOCOL, subject=subject)

    def violated(self, session: LeafSession, subject: bytes) -> None:
        """It sends what it may not: the message is dropped."""
        session.tell(errors.NATS_LEAF_VIOLATED, subject=subject)

    @staticmethod
    def _delay(session: LeafSession) -> None:
        if session.remote is not None:
            session.remote.delay_ns = limits.NATS_LEAF_DELAY

    def left(self, session: LeafSession) -> None:
        """A link is gone."""
        self.acceptor.left(session)
        self.nodes.sessions.discard(session)
        account = session.account
        log.info(
            "%s - Leafnode connection closed: %s%s",
            who(session),
            session.closed_because,
            f" - Account: {account.name}" if account is not None else "",
        )
        if session.interest is not None:
            session.interest.leave(session)
        for act in self.nodes.on_leave:
            act(session)
        if session.remote is not None:
            session.remote.ended()
