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

import asyncio
import base64
import logging
import os
import random
from typing import TYPE_CHECKING

import orjson

from broker import errors, limits
from broker.protocols.nats.leaf_hello import (
    CredentialsError,
    PeerConnect,
    PeerInfo,
    at_least,
    connect_line,
    denied,
    permissions_info,
    sign_in,
)
from broker.protocols.nats.login import Identity, Login, Refused
from broker.protocols.nats.options import ClientOptions
from broker.protocols.nats.settings import Permissions, Rules
from broker.protocols.nats.tls_gate import TlsGate
from broker.protocols.nats.tls_policy import peer_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from broker.protocols.nats.account import Account
    from broker.protocols.nats.leaf_nodes import LeafNodes
    from broker.protocols.nats.leaf_session import LeafSession
    from broker.protocols.nats.login import TlsPeer

log = logging.getLogger("broker.nats")


def name_of(session: LeafSession) -> str:
    """As the original begins what it logs of a link."""
    host = f"[{session.host}]" if ":" in session.host else session.host
    return f"{host}:{session.port} - lid:{session.client_id}"


class LeafGate:
    """Called by the links; both sides of the handshake."""

    def __init__(self, nodes: LeafNodes) -> None:
        self.nodes = nodes
        self.slow = 0  # links closed because the peer did not read
        self.pending_max = nodes.server.settings.max_pending
        self.tasks: set[asyncio.Task[None]] = set()  # logins that somebody is asked about
        self._pending: dict[LeafSession, PeerConnect] = {}

    # --- a connection is made

    def opened(self, session: LeafSession) -> None:
        """INFO goes out, or is waited for."""
        peer = session.link.peer
        session.host, session.port = peer[:2] if isinstance(peer, tuple) else ("", 0)
        self.nodes.sessions.add(session)
        if session.remote is None:
            log.info("%s - Leafnode connection created", name_of(session))
            self._accepted(session)
            return
        account = self.nodes.server.gate.account(session.remote.config.account)
        if account is None:
            log.error(
                "Unable to lookup account %s for solicited leafnode connection",
                session.remote.config.account,
            )
            session.end(None, errors.NATS_CLOSED_MISSING_ACCOUNT)
            return
        log.info("%s - Leafnode connection created for account: %s", name_of(session), account.name)
        self._bind(session, account, None)
        session.hurry(limits.NATS_LEAF_INFO)
        if session.remote.tls_first:
            session.remote.secure(session)

    def _accepted(self, session: LeafSession) -> None:
        session.nonce = base64.urlsafe_b64encode(os.urandom(limits.NATS_NONCE_BYTES)).rstrip(b"=")
        if self.nodes.tls is not None:
            session.tls_gate = TlsGate(self.nodes.tls, session, self._greet, self._begin)
            session.tls_gate.opened()
            return
        self._greet(session, False)
        self._begin(session, None)

    def _greet(self, session: LeafSession, _behind_tls: bool) -> None:
        assert session.nonce is not None
        session.send(self.info_line(session, nonce=session.nonce.decode()))

    def _begin(self, session: LeafSession, tls: TlsPeer | None) -> None:
        """CONNECT must come, and in time."""
        session.tls_peer = tls
        session.tls_gate = None
        session.hurry(self.nodes.login_timeout_ns)

    def info_line(self, session: LeafSession, **more: object) -> bytes:
        """INFO for this peer."""
        fields = {**self.nodes.info, "client_id": session.client_id, **more}
        return b"INFO " + orjson.dumps(fields) + b" \r\n"

    # --- the acceptor

    def connect(self, session: LeafSession, raw: bytes) -> None:
        """CONNECT of a server that joins us."""
        if session.remote is not None or session.options is not None:
            session.end(None, errors.NATS_CLOSED_PROTOCOL)
            return
        options = ClientOptions()
        session.hurry(0)
        try:
            options.merge(raw)
            self._pending[session] = PeerConnect.read(raw)
        except ValueError:
            session.end(None, errors.NATS_CLOSED_PROTOCOL)
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
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

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
        try:
            identity = await answer
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
        log.error("%s - %s", name_of(session), refusal)
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
            session.end(errors.NATS_ACCOUNT_CONNECTIONS, errors.NATS_CLOSED_ACCOUNT_CONNECTIONS)
        elif options.lang:
            session.end(errors.NATS_LEAF_PORT, errors.NATS_CLOSED_WRONG_PORT)
        elif any(letter.isspace() for letter in hello.cluster):
            session.end(errors.NATS_LEAF_CLUSTER_BLANK, errors.NATS_CLOSED_PROTOCOL)
        elif hello.cluster and hello.cluster == self.nodes.cluster:
            session.end(errors.NATS_LEAF_CLUSTER, errors.NATS_CLOSED_CLUSTER)
        elif hello.gateway:
            session.end(
                errors.NATS_LEAF_GATEWAY,
                errors.NATS_CLOSED_GATEWAY,
                name=hello.gateway.encode(),
            )
        elif not at_least(hello.version, self.nodes.config.min_version):
            self._too_old(session, account)
        else:
            self._accept(session, account, identity, hello)

    def _too_old(self, session: LeafSession, account: Account) -> None:
        """Kept for a while: it would come back at once."""
        least = self.nodes.config.min_version
        session.send(self.info_line(session, connect_info=True, remote_account=account.name))
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
            session.end(None, errors.NATS_CLOSED_PROTOCOL)
            return
        if rights.responses is not None and want.allow is None:
            want = Rules((), want.deny)
        session.identity = identity
        session.peer_name, session.peer_cluster = hello.name, hello.cluster
        session.peer_account = hello.remote_account
        session.spoke = hello.hub
        session.talks_headers(hello.headers)
        session.rights(Rules(send.allow or None, send.deny), want)
        self._bind(session, account, identity)
        self._replace(session, account)
        session.begin()
        session.send(
            self.info_line(
                session,
                **permissions_info(identity.permissions),
                connect_info=True,
                remote_account=account.name,
            )
        )
        self._begun(session)

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
                log.warning("%s - Replacing connection from same server", name_of(session))
                other.end(errors.NATS_LEAF_DUPLICATE, errors.NATS_CLOSED_DUPLICATE)

    # --- the solicitor

    def info(self, session: LeafSession, raw: bytes) -> None:
        """INFO of the server that we join."""
        try:
            info = PeerInfo.read(raw)
        except ValueError:
            session.end(None, errors.NATS_CLOSED_PROTOCOL)
            return
        remote = session.remote
        if remote is None:
            return  # its rights are ours to say
        if not session.greeted and (not info.client_id or info.urls is None):
            log.error("%s - %s", name_of(session), errors.NATS_LEAF_WRONG_PORT)
            session.end(None, errors.NATS_CLOSED_WRONG_PORT)
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
        if cause is None and not session.remote.knows(session):
            cause = "certificate not pinned"
        if cause is not None:
            log.error("%s - TLS leafnode handshake error: %s", name_of(session), cause)
            session.end(None, errors.NATS_CLOSED_TLS)
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
            who = sign_in(remote.config, session.nonce or b"", *remote.user())
        except CredentialsError as problem:
            log.error("%s - %s", name_of(session), problem)
            session.end(None, errors.NATS_CLOSED_AUTHENTICATION)
            return
        server = self.nodes.server
        session.send(
            connect_line(
                {
                    "version": limits.NATS_VERSION,
                    **who,
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
            self.loop(session)
            return
        if 0 <= account.leafs_max <= len(account.leafs):
            session.end(errors.NATS_ACCOUNT_CONNECTIONS, errors.NATS_CLOSED_ACCOUNT_CONNECTIONS)
            return
        session.begin()
        self._begun(session)

    # --- both

    def _bind(self, session: LeafSession, account: Account, identity: Identity | None) -> None:
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

    def _begun(self, session: LeafSession) -> None:
        first = min(self.nodes.server.settings.ping_interval_ns, limits.NATS_LEAF_FIRST_PING)
        jitter = random.randrange(first // limits.NATS_FIRST_PING_JITTER + 1)  # noqa: S311
        identity = session.identity
        session.ping_in(first + jitter, identity.expires_ns if identity is not None else 0)
        assert session.interest is not None
        session.interest.join(session)
        if session.remote is not None:
            session.remote.begun()
        for act in self.nodes.on_join:
            act(session)

    def late(self, session: LeafSession) -> None:
        """What was waited for has not come."""
        if session.remote is None:
            if session.options is not None:
                session.end(None, errors.NATS_CLOSED_VERSION)
            else:
                session.end(errors.NATS_LOGIN_TIMEOUT, errors.NATS_CLOSED_AUTH_TIMEOUT)
        elif session.greeted:
            session.end(errors.NATS_LEAF_STALE, errors.NATS_CLOSED_STALE)
        else:
            session.end(None, errors.NATS_CLOSED_READ)

    def told(self, session: LeafSession, raw: bytes) -> None:
        """-ERR of the peer."""
        text = raw.decode("utf-8", "replace")
        log.error("%s - Leafnode Error %s", name_of(session), text)
        if errors.NATS_LEAF_CLUSTER.text in text:
            self._delay(session)
            log.error(
                "%s - Leafnode connection dropped with same cluster name error. "
                "Delaying attempt to reconnect for 30s",
                name_of(session),
            )
        elif errors.NATS_LEAF_LOOP_WORDS in text:
            self._delay(session)
            session.end(None, errors.NATS_CLOSED_PROTOCOL)

    def loop(self, session: LeafSession) -> None:
        """What it announces comes from ourselves."""
        account = session.account.name.encode() if session.account is not None else b""
        self._delay(session)
        log.error(
            "%s - %s",
            name_of(session),
            errors.NATS_LEAF_LOOP.text.format(account=errors.go_quote(account)),
        )
        session.end(errors.NATS_LEAF_LOOP, errors.NATS_CLOSED_PROTOCOL, account=account)

    def unwanted(self, session: LeafSession, subject: bytes) -> None:
        """It asks for what may not be sent to it."""
        if session.spoke:
            return  # our hub tells everybody; what we may not send stays here
        self._delay(session)
        log.error(
            "%s - Subscription Violation on %s - Check other side configuration",
            name_of(session),
            errors.go_quote(subject),
        )
        session.end(errors.NATS_LEAF_UNWANTED, errors.NATS_CLOSED_PROTOCOL, subject=subject)

    def violated(self, session: LeafSession, subject: bytes) -> None:
        """It sends what it may not: the message is dropped."""
        session.tell(errors.NATS_LEAF_VIOLATED, subject=subject)

    @staticmethod
    def _delay(session: LeafSession) -> None:
        if session.remote is not None:
            session.remote.delay_ns = limits.NATS_LEAF_DELAY

    def left(self, session: LeafSession) -> None:
        """A link is gone."""
        self._pending.pop(session, None)
        self.nodes.sessions.discard(session)
        account = session.account
        log.info(
            "%s - Leafnode connection closed: %s%s",
            name_of(session),
            session.closed_because,
            f" - Account: {account.name}" if account is not None else "",
        )
        if session.interest is not None:
            session.interest.leave(session)
        for act in self.nodes.on_leave:
            act(session)
        if session.remote is not None:
            session.remote.ended()
