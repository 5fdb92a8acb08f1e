"""The side of a leaf link that was dialled: who may join, and as what."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from typing import TYPE_CHECKING

from broker.protocols.nats import errors as nats_errors
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.auth.authenticator import Identity, Login, Refused
from broker.protocols.nats.client.replies import Replies
from broker.protocols.nats.leafnodes import errors, limits
from broker.protocols.nats.leafnodes.hello import PeerConnect, at_least, denied, permissions_info
from broker.protocols.nats.settings import Permissions, Rules
from broker.protocols.nats.tls_gate import TlsGate
from broker.protocols.nats.trace import who
from broker.protocols.nats.wire.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.auth.authenticator import TlsPeer
    from broker.protocols.nats.leafnodes.handshake import LeafGate
    from broker.protocols.nats.leafnodes.session import LeafSession

log = logging.getLogger("broker.nats")


class Acceptor:
    """Its part of the gate."""

    def __init__(self, gate: LeafGate) -> None:
        self.gate = gate
        self.nodes = gate.nodes
        self._pending: dict[LeafSession, PeerConnect] = {}  # their logins are looked at

    def opened(self, session: LeafSession) -> None:
        """Say INFO, begin TLS if that is asked for, and wait for CONNECT."""
        log.info("%s - Leafnode connection created", who(session))
        session.nonce = base64.urlsafe_b64encode(os.urandom(nats_limits.NATS_NONCE_BYTES)).rstrip(
            b"="
        )
        if self.nodes.tls is not None and session.kind == "LEAFNODE":
            session.tls_gate = TlsGate(self.nodes.tls, session, self._greet, self._begin)
            session.tls_gate.opened()
            return
        self._greet(session, False)
        self._begin(session, session.tls_peer)

    def _greet(self, session: LeafSession, _behind_tls: bool) -> None:
        assert session.nonce is not None
        session.send(self.gate.info_line(session, nonce=session.nonce.decode()))

    def _begin(self, session: LeafSession, tls: TlsPeer | None) -> None:
        """CONNECT must come, and in time."""
        session.tls_peer = tls
        session.tls_gate = None
        session.hurry(self.nodes.login_timeout_ns)

    def connect(self, session: LeafSession, raw: bytes) -> None:
        """CONNECT of a server that joins us."""
        options = ClientOptions()
        session.hurry(0)
        try:
            options.merge(raw)
            self._pending[session] = PeerConnect.read(raw)
        except ValueError:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)
            return
        session.options = options
        login = self.login(session)
        try:
            answer = self.nodes.server.gate.authenticator.check(login)
        except Refused as refusal:
            self._refuse(session, refusal)
            return
        if isinstance(answer, Identity):
            self._admit(session, answer)
            return
        session.wait()
        task = asyncio.get_running_loop().create_task(self._check_later(session, answer))
        self.gate.tasks.add(task)
        task.add_done_callback(self.gate.tasks.discard)

    def login(self, session: LeafSession) -> Login:
        """What is known about the peer."""
        return Login(
            options=session.options or ClientOptions(),
            nonce=session.nonce or b"",
            host=session.host,
            kind=session.kind,
            tls=session.tls_peer,
            client_id=session.client_id,
        )

    async def _check_later(self, session: LeafSession, answer: Awaitable[Identity]) -> None:
        gate = self.nodes.server.gate
        asked = gate.authenticator
        try:
            identity = await answer
            if gate.authenticator is not asked:  # there was a reload meanwhile
                again = gate.authenticator.check_again(identity, self.login(session))
                identity = again if isinstance(again, Identity) else await again
        except Refused as refusal:
            if session.link is not None:
                self._refuse(session, refusal)
            return
        except Exception:
            log.exception("login of leaf %d", session.client_id)
            if session.link is not None:
                self._refuse(session, Refused("internal error"))
            return
        if session.link is not None:
            self._admit(session, identity)
            session.go()

    def refuse(self, session: LeafSession, reason: str) -> None:
        """Turn away somebody who did not even ask properly."""
        self._refuse(session, Refused(reason))

    def _refuse(self, session: LeafSession, refusal: Refused) -> None:
        login = self.login(session)
        log.error("%s - authentication error", who(session))
        log.debug("%s - %s", who(session), refusal)
        for act in self.nodes.on_refuse:
            act(session, login, str(refusal))
        self._pending.pop(session, None)
        session.end(refusal.error, refusal.why)

    def _admit(self, session: LeafSession, identity: Identity) -> None:
        """The login holds: see what else it says, and begin."""
        hello, options = self._pending.pop(session), session.options
        assert options is not None
        account = self.nodes.server.gate.account(identity.account)
        if account is None:
            self._refuse(session, Refused(f"account {identity.account} is not there"))
        elif options.account or options.new_account:
            self._refuse(session, Refused("an account is named in CONNECT"))
        elif 0 <= account.leafs_max <= len(account.leafs):
            session.end(
                nats_errors.NATS_ACCOUNT_CONNECTIONS, nats_errors.NATS_CLOSED_ACCOUNT_CONNECTIONS
            )
        elif options.lang:
            session.end(errors.NATS_LEAF_PORT, nats_errors.NATS_CLOSED_WRONG_PORT)
        elif any(letter.isspace() for letter in hello.cluster):
            session.end(errors.NATS_LEAF_CLUSTER_BLANK, nats_errors.NATS_CLOSED_PROTOCOL)
        elif hello.cluster and hello.cluster == self.nodes.cluster:
            session.end(errors.NATS_LEAF_CLUSTER, nats_errors.NATS_CLOSED_CLUSTER)
        elif hello.gateway:
            session.end(
                errors.NATS_LEAF_GATEWAY,
                nats_errors.NATS_CLOSED_GATEWAY,
                name=hello.gateway.encode(),
            )
        elif not at_least(hello.version, self.nodes.config.min_version):
            self._too_old(session, account)
        else:
            self._accept(session, account, identity, hello)

    def _too_old(self, session: LeafSession, account: Account) -> None:
        """Kept for a while: it would come back at once."""
        least = self.nodes.config.min_version
        session.send(self.gate.info_line(session, connect_info=True, remote_account=account.name))
        session.tell(errors.NATS_LEAF_VERSION, version=least.encode())
        session.link.pause()
        session.hurry(limits.NATS_LEAF_VERSION_WAIT)

    def _accept(
        self, session: LeafSession, account: Account, identity: Identity, hello: PeerConnect
    ) -> None:
        try:
            rights = identity.permissions or Permissions()
            send, want = denied(rights.subscribe, hello.deny_pub), rights.publish
        except ValueError:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)
            return
        replies = None
        if rights.responses is not None:
            replies = Replies(rights.responses.max_msgs, rights.responses.expires_ns)
            if want.allow is None:
                want = Rules((), want.deny)
        session.identity = identity
        session.belongs_to(f"leaf:{identity.user}")
        session.peer_name, session.peer_cluster = hello.name, hello.cluster
        session.peer_account = hello.remote_account
        session.spoke = hello.hub
        session.talks_headers(hello.headers)
        session.rights(Rules(send.allow or None, send.deny), want, replies)
        self.gate.bind(session, account, identity)
        self._replace(session, account)
        session.begin()
        session.send(
            self.gate.info_line(
                session,
                **permissions_info(identity.permissions),
                connect_info=True,
                remote_account=account.name,
            )
        )
        self.gate.begun(session)

    def _replace(self, session: LeafSession, account: Account) -> None:
        """The same server is here again: the older connection is one that nobody has noticed."""
        if not session.peer_name or not session.peer_account:
            return
        for other in list(account.leafs):
            if (
                other.remote is None
                and other.peer_name == session.peer_name
                and other.peer_cluster == session.peer_cluster
                and other.peer_account == session.peer_account
            ):
                log.warning("%s - Replacing connection from same server", who(session))
                other.end(errors.NATS_LEAF_DUPLICATE, nats_errors.NATS_CLOSED_DUPLICATE)

    def late(self, session: LeafSession) -> None:
        """CONNECT has not come, or one that was too old has been kept for long enough."""
        if session.options is not None:
            session.end(None, nats_errors.NATS_CLOSED_VERSION)
        else:
            session.end(nats_errors.NATS_LOGIN_TIMEOUT, nats_errors.NATS_CLOSED_AUTH_TIMEOUT)

    def left(self, session: LeafSession) -> None:
        """It is gone."""
        self._pending.pop(session, None)
