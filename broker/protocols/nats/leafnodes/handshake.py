"""The handshake between hub and leaf, and the state shared by the links of one server.

    acceptor                                    solicitor (dialled)
    INFO nonce, leafnode_urls        -->
                                    (TLS)
                                     <--        CONNECT name, cluster, credentials, account
    (login, account, permissions)
    INFO connect_info, permissions,
    LS+                              -->
                                     <--        LS+

The acceptor is the hub, unless the solicitor sends `is_hub`. Compression is negotiated between INFO
and CONNECT: see compression.py. Source: nats-server leafnode.go.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Any

import orjson

from broker.base.gotext import go_quote
from broker.base.units import SECOND
from broker.protocols.nats import errors as nats_errors
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.auth.authenticator import Identity, Login, Refused
from broker.protocols.nats.client.replies import Replies
from broker.protocols.nats.leafnodes import compression, errors, limits
from broker.protocols.nats.leafnodes.hello import (
    CredentialsError,
    PeerConnect,
    PeerInfo,
    at_least,
    connect_line,
    denied,
    permissions_info,
    sign_in,
)
from broker.protocols.nats.leafnodes.interest import Interests
from broker.protocols.nats.settings import Leafnodes, Permissions, Rules
from broker.protocols.nats.tls import TlsHandshake, TlsPolicy, peer_of
from broker.protocols.nats.trace import who
from broker.protocols.nats.wire.options import ClientOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.nats.auth.authenticator import Identity, TlsPeer
    from broker.protocols.nats.context import NatsContext
    from broker.protocols.nats.leafnodes.session import LeafSession
    from broker.protocols.nats.settings import Compression, Rules

log = logging.getLogger("broker.nats")


class LeafHandshake:
    """The handshakes of the links of one server, and the state that the links share."""

    def __init__(self, context: NatsContext) -> None:
        self.context = context
        self.interests = Interests()
        self.sessions: set[LeafSession] = set()  # all connections, also before the login
        self.on_establish: list[Callable[[LeafSession], object]] = []  # after the handshake
        self.on_refuse: list[Callable[[LeafSession, Login, str], object]] = []
        self.on_close: list[Callable[[LeafSession], object]] = []  # also without a handshake
        self.own_info: dict[str, Any] = {}  # INFO fields for servers that join this one
        self.tls: TlsPolicy | None = None  # of the listener
        self.slow = 0  # links closed because the peer did not read
        self.pending_max = context.settings.max_pending
        self.tasks: set[asyncio.Task[None]] = set()  # pending logins
        self.acceptor = Acceptor(self)
        self.solicitor = Solicitor(self)

    @property
    def config(self) -> Leafnodes:
        """The configured settings, or the defaults."""
        return self.context.settings.leafnodes or Leafnodes()

    @property
    def cluster(self) -> str:
        """This server's cluster name; a server that joins others is a cluster of its own."""
        own_name = self.context.server_name if self.config.remotes else ""
        return self.context.settings.cluster or own_name

    @property
    def login_timeout_ns(self) -> int:
        """The time from INFO, or from the end of the TLS handshake, to CONNECT."""
        own = self.config.authorization
        if own is not None and own.timeout_ns:
            return own.timeout_ns
        if self.config.tls is not None:
            return self.config.tls.timeout_ns + SECOND
        return nats_limits.NATS_AUTH_TIMEOUT

    # --- called by the links during their handshake

    def opened(self, session: LeafSession) -> None:
        """Begin the handshake of a new connection."""
        self.sessions.add(session)
        side = self.acceptor if session.remote is None else self.solicitor
        side.opened(session)

    def connect(self, session: LeafSession, raw: bytes) -> None:
        """Handle CONNECT."""
        if session.remote is None and session.options is None:
            self.acceptor.connect(session, raw)
        else:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)

    def info(self, session: LeafSession, raw: bytes) -> None:
        """Handle INFO. From a server that joins this one, only its compression is used."""
        if session.remote is not None:
            self.solicitor.info(session, raw)
        else:
            self.acceptor.info(session, raw)

    def secured(self, session: LeafSession, cause: str | None) -> None:
        """TLS with a server that this one joins has begun, or has failed for this `cause`."""
        self.solicitor.secured(session, cause)

    def refuse(self, session: LeafSession, reason: str) -> None:
        """Reject a peer whose first operation is not a valid CONNECT."""
        self.acceptor.refuse(session, reason)

    def info_line(self, session: LeafSession, **more: object) -> bytes:
        """The INFO line for this peer."""
        fields = {**self.own_info, **self.jetstream_info(), "client_id": session.client_id, **more}
        return b"INFO " + orjson.dumps(fields) + b" \r\n"

    # --- compression

    def compression_of(self, session: LeafSession) -> Compression:
        """The configured compression of this link; a WebSocket link has none."""
        if session.kind != "LEAFNODE":
            return compression.NONE
        if session.remote is None:
            return self.config.compression
        return session.remote.config.compression

    def negotiate(self, session: LeafSession, peer: str) -> bool:
        """Agree on compression with a peer that has this mode. True: compression begins now; a hub
        has sent its INFO, and a leaf waits for that of its hub. CompressionUnknown."""
        own = self.compression_of(session)
        if not compression.is_wanted(own.mode):
            unable = not peer or own.mode == compression.NOT_SUPPORTED
            session.set_compression(own, compression.NOT_SUPPORTED if unable else compression.OFF)
            return False
        mode = compression.choose(own, peer)
        if not compression.is_wanted(mode):
            session.set_compression(own, mode)
            return False
        level = self._level(session, own, mode)
        shown = compression.AUTO if own.mode == compression.AUTO else level
        nonce = (session.nonce or b"").decode()
        line = self.info_line(session, compression=shown, **({"nonce": nonce} if nonce else {}))
        if session.remote is not None:
            session.send(line)
        self._compress(session, own, level, by_rtt=mode == compression.AUTO)
        if session.remote is None:
            session.send(line)
        return True

    def _level(self, session: LeafSession, own: Compression, mode: str) -> str:
        since_ns = time.time_ns() - session.start_ns
        return compression.level_of(mode, own, session.rtt_ns or since_ns)

    @staticmethod
    def _compress(session: LeafSession, own: Compression, level: str, *, by_rtt: bool) -> None:
        session.compress(own, level, level != compression.UNCOMPRESSED, by_rtt)

    def measured(self, session: LeafSession) -> None:
        """The round-trip time of a link has changed, and its level may follow it."""
        own = session.compression_config
        if own is not None:
            level = self._level(session, own, compression.AUTO)
            self._compress(session, own, level, by_rtt=True)

    def compress_again(self, session: LeafSession) -> None:
        """Apply a changed configuration: with another level, or with a new connection."""
        own, former = self.compression_of(session), session.compression_config
        if former is None or own == former or session.ending:
            return
        found = session.compression
        if found == compression.NOT_SUPPORTED or found == own.mode == compression.OFF:
            session.set_compression(own, found)
        elif found == compression.OFF or own.mode in compression.NEEDS_NEGOTIATION:
            session.end(None, nats_errors.NATS_CLOSED_CLIENT)
        else:
            level = self._level(session, own, own.mode)
            self._compress(session, own, level, by_rtt=own.mode == compression.AUTO)

    def jetstream_info(self) -> dict[str, Any]:
        """The fields of INFO and CONNECT about JetStream; empty if this server has none."""
        view = self.context.jetstream
        shown = {} if view is None else view.info()
        return {name: shown[name] for name in ("jetstream", "domain") if name in shown}

    # --- for both sides of the handshake

    def bind(self, session: LeafSession, account: Account, identity: Identity | None) -> None:
        """Bind the link to an account."""
        context = self.context
        most = [context.settings.max_subscriptions or -1, account.subscriptions_max]
        if identity is not None:
            most.append(identity.subscriptions_max)
        most = [count for count in most if count >= 0]
        session.bind(
            account,
            self.interests.of(account),
            account is context.system_account,
            min(most) if most else -1,
        )

    def begun(self, session: LeafSession) -> None:
        """The handshake is over: announce the subscriptions of this side to the peer."""
        first = min(self.context.settings.ping_interval_ns, limits.NATS_LEAF_FIRST_PING)
        jitter = random.randrange(first // nats_limits.NATS_FIRST_PING_JITTER + 1)  # noqa: S311
        identity = session.identity
        session.arm_first_ping(first + jitter, identity.expires_ns if identity is not None else 0)
        assert session.interest is not None
        session.interest.join(session)
        own, other = self.jetstream_info().get("domain", ""), session.peer_domain
        if own != other:
            text = '%s - JetStream using domains: local "%s", remote "%s"'
            log.info(text, who(session), own, other)
        if session.remote is not None:
            session.remote.begun()
        for act in self.on_establish:
            act(session)

    # --- called by the links later

    def timed_out(self, session: LeafSession) -> None:
        """Handle a missed deadline of the handshake."""
        side = self.acceptor if session.remote is None else self.solicitor
        side.timed_out(session)

    def peer_error(self, session: LeafSession, raw: bytes) -> None:
        """Handle -ERR of the peer."""
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

    def loop_detected(self, session: LeafSession) -> None:
        """Handle a loop: the peer announces this server's own loop subject."""
        account = session.account.name.encode() if session.account is not None else b""
        self._delay(session)
        log.error(
            "%s - %s",
            who(session),
            errors.NATS_LEAF_LOOP.text.format(account=go_quote(account)),
        )
        session.end(errors.NATS_LEAF_LOOP, nats_errors.NATS_CLOSED_PROTOCOL, account=account)

    def subscription_denied(self, session: LeafSession, subject: bytes) -> None:
        """Handle a subscription to a subject that must not be sent to the peer."""
        if session.spoke:
            # A hub announces subscriptions to all leafs; denied messages are not sent to it.
            return
        self._delay(session)
        log.error(
            "%s - Subscription Violation on %s - Check other side configuration",
            who(session),
            go_quote(subject),
        )
        session.end(errors.NATS_LEAF_UNWANTED, nats_errors.NATS_CLOSED_PROTOCOL, subject=subject)

    def publish_denied(self, session: LeafSession, subject: bytes) -> None:
        """Handle a dropped message to a subject that the peer may not publish to."""
        if session.spoke or session.remote is not None:
            return  # the peer does not know which subjects this side does not import
        session.send_error(errors.NATS_LEAF_VIOLATED, subject=subject)

    @staticmethod
    def _delay(session: LeafSession) -> None:
        if session.remote is not None:
            session.remote.delay_ns = limits.NATS_LEAF_DELAY

    def closed(self, session: LeafSession) -> None:
        """Handle the end of a link."""
        self.acceptor.closed(session)
        self.solicitor.closed(session)
        self.sessions.discard(session)
        account = session.account
        log.info(
            "%s - Leafnode connection closed: %s%s",
            who(session),
            session.closed_because,
            f" - Account: {account.name}" if account is not None else "",
        )
        if session.interest is not None:
            session.interest.leave(session)
        for act in self.on_close:
            act(session)
        if session.remote is not None:
            session.remote.ended()


class Acceptor:
    """The handshake of accepted links."""

    def __init__(self, handshake: LeafHandshake) -> None:
        self.handshake = handshake
        self._pending: dict[LeafSession, PeerConnect] = {}  # whose logins are being checked

    def opened(self, session: LeafSession) -> None:
        """Send INFO, begin TLS if it is configured, and wait for CONNECT."""
        log.info("%s - Leafnode connection created", who(session))
        if self.handshake.tls is not None and session.kind == "LEAFNODE":
            session.start_tls(
                TlsHandshake(self.handshake.tls, session, self._send_info, self._wait_for_connect)
            )
            return
        self._send_info(session, _after_tls=False)
        self._wait_for_connect(session, session.tls_peer)

    def _send_info(self, session: LeafSession, _after_tls: bool) -> None:
        mode = self.handshake.compression_of(session).mode
        shown = {} if mode == compression.NOT_SUPPORTED else {"compression": mode}
        if compression.is_wanted(mode):
            session.negotiate()
        nonce = session.make_nonce().decode()
        session.send(self.handshake.info_line(session, nonce=nonce, **shown))

    def info(self, session: LeafSession, raw: bytes) -> None:
        """Handle INFO. Before CONNECT it has the peer's compression; a later one is ignored."""
        try:
            info = PeerInfo.read(raw)
            if session.options is None and not session.compression:
                self.handshake.negotiate(session, info.compression)
        except compression.CompressionUnknown as problem:
            session.send(b"-ERR '%b'\r\n" % str(problem).encode())
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)
        except ValueError:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)

    def _wait_for_connect(self, session: LeafSession, tls: TlsPeer | None) -> None:
        """Wait for CONNECT, with a deadline."""
        session.finish_tls(tls)
        session.set_deadline(self.handshake.login_timeout_ns)

    def connect(self, session: LeafSession, raw: bytes) -> None:
        """Handle CONNECT of a server that joins this one."""
        options = ClientOptions()
        session.set_deadline(0)
        try:
            options.merge(raw)
            self._pending[session] = PeerConnect.read(raw)
        except ValueError:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)
            return
        if not session.compression:
            found = self._pending[session].compression or compression.NOT_SUPPORTED
            session.set_compression(self.handshake.compression_of(session), found)
        session.apply_options(options)
        login = self.login(session)
        try:
            answer = self.handshake.context.handshake.identify(login)
        except Refused as refusal:
            self._refuse(session, refusal)
            return
        if isinstance(answer, Identity):
            self._admit(session, answer)
            return
        session.pause_input()
        task = asyncio.get_running_loop().create_task(self._check_later(session, answer))
        self.handshake.tasks.add(task)
        task.add_done_callback(self.handshake.tasks.discard)

    def login(self, session: LeafSession) -> Login:
        """The login of the peer, for the authenticator."""
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
            identity = await self.handshake.context.handshake.resolve(self.login(session), answer)
            if session.link is not None:
                self._admit(session, identity)
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
            session.unpause_input()

    def refuse(self, session: LeafSession, reason: str) -> None:
        """Reject a peer whose first operation is not a valid CONNECT."""
        self._refuse(session, Refused(reason))

    def _refuse(self, session: LeafSession, refusal: Refused) -> None:
        login = self.login(session)
        log.error("%s - authentication error", who(session))
        log.debug("%s - %s", who(session), refusal)
        for act in self.handshake.on_refuse:
            act(session, login, str(refusal))
        self._pending.pop(session, None)
        session.end(refusal.error, refusal.why)

    def _admit(self, session: LeafSession, identity: Identity) -> None:
        """Check the other fields of CONNECT after a valid login, and complete the handshake."""
        connect, options = self._pending.pop(session), session.options
        assert options is not None
        account = self.handshake.context.handshake.account(identity.account)
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
        elif any(letter.isspace() for letter in connect.cluster):
            session.end(errors.NATS_LEAF_CLUSTER_BLANK, nats_errors.NATS_CLOSED_PROTOCOL)
        elif connect.cluster and connect.cluster == self.handshake.cluster:
            session.end(errors.NATS_LEAF_CLUSTER, nats_errors.NATS_CLOSED_CLUSTER)
        elif connect.gateway:
            session.end(
                errors.NATS_LEAF_GATEWAY,
                nats_errors.NATS_CLOSED_GATEWAY,
                name=connect.gateway.encode(),
            )
        elif not at_least(connect.version, self.handshake.config.min_version):
            self._too_old(session, account)
        else:
            self._accept(session, account, identity, connect)

    def _too_old(self, session: LeafSession, account: Account) -> None:
        """Refuse a peer with a too old version. Its connection stays open for
        NATS_LEAF_VERSION_WAIT, because the peer would reconnect at once."""
        least = self.handshake.config.min_version
        session.send(
            self.handshake.info_line(session, connect_info=True, remote_account=account.name)
        )
        session.send_error(errors.NATS_LEAF_VERSION, version=least.encode())
        session.pause_input()  # pause input, because the link has no account
        session.set_deadline(limits.NATS_LEAF_VERSION_WAIT)

    def _accept(
        self, session: LeafSession, account: Account, identity: Identity, connect: PeerConnect
    ) -> None:
        try:
            permissions = identity.permissions or Permissions()
            send = denied(permissions.subscribe, connect.deny_pub)
            receive = permissions.publish
        except ValueError:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)
            return
        replies = None
        if permissions.responses is not None:
            responses = permissions.responses
            replies = Replies(responses.max_msgs, responses.expires_ns)
            if receive.allow is None:
                receive = Rules((), receive.deny)
        session.admit(identity, connect)
        session.set_permissions(Rules(send.allow or None, send.deny), receive, replies)
        self.handshake.bind(session, account, identity)
        self._replace(session, account)
        session.begin()
        session.send(
            self.handshake.info_line(
                session,
                **permissions_info(identity.permissions),
                connect_info=True,
                remote_account=account.name,
            )
        )
        self.handshake.begun(session)

    def _replace(self, session: LeafSession, account: Account) -> None:
        """Close an older connection of the same server, which the peer no longer uses."""
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

    def timed_out(self, session: LeafSession) -> None:
        """Handle a missed deadline: no CONNECT, or the end of NATS_LEAF_VERSION_WAIT."""
        if session.options is not None:
            session.end(None, nats_errors.NATS_CLOSED_VERSION)
        else:
            session.end(nats_errors.NATS_LOGIN_TIMEOUT, nats_errors.NATS_CLOSED_AUTH_TIMEOUT)

    def closed(self, session: LeafSession) -> None:
        """Handle the end of the connection."""
        self._pending.pop(session, None)


class Solicitor:
    """The handshake of dialled links."""

    def __init__(self, handshake: LeafHandshake) -> None:
        self.handshake = handshake
        self._negotiating: set[LeafSession] = set()  # which wait for the second INFO
        self._offers: dict[LeafSession, str] = {}  # the peer's compression, until TLS has begun

    def opened(self, session: LeafSession) -> None:
        """Bind the link to its account, and wait for INFO."""
        assert session.remote is not None
        account = self.handshake.context.handshake.account(session.remote.config.account)
        if account is None:
            log.error(
                "Unable to lookup account %s for solicited leafnode connection",
                session.remote.config.account,
            )
            session.end(None, nats_errors.NATS_CLOSED_MISSING_ACCOUNT)
            return
        log.info("%s - Leafnode connection created for account: %s", who(session), account.name)
        self.handshake.bind(session, account, None)
        session.set_deadline(session.remote.config.first_info_timeout_ns)
        if session.remote.tls_first:
            session.remote.secure(session)

    def info(self, session: LeafSession, raw: bytes) -> None:
        """Handle INFO of the server that this one joins."""
        try:
            info = PeerInfo.read(raw)
        except ValueError:
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)
            return
        remote = session.remote
        assert remote is not None
        if not session.info_received and (not info.client_id or info.urls is None):
            log.error("%s - %s", who(session), errors.NATS_LEAF_WRONG_PORT)
            session.end(None, nats_errors.NATS_CLOSED_WRONG_PORT)
            return
        if info.urls:
            remote.add_urls(info.urls)
        if info.publish is not None or info.subscribe is not None:
            self._set_permissions(session, info.publish, info.subscribe)
        if session in self._negotiating:
            self._negotiating.discard(session)
            self._connect(session)
            return
        if session.info_received:
            if info.remote_account:
                session.set_peer_account(info.remote_account)
            if info.connect_info:
                self._finish(session)
            return
        session.set_info(info)
        if info.publish is None and info.subscribe is None:
            self._set_permissions(session, None, None)
        remote.answers_connect = info.info_on_connect
        if session.tls_peer is None and remote.uses_tls(required=info.tls_required):
            self._offers[session] = info.compression
            remote.secure(session)
        else:
            self._negotiate_or_connect(session, info.compression)

    def _set_permissions(
        self, session: LeafSession, publish: Rules | None, subscribe: Rules | None
    ) -> None:
        assert session.remote is not None
        config = session.remote.config
        send = denied(publish, config.deny_exports)
        session.set_permissions(send, denied(subscribe, config.deny_imports))

    def secured(self, session: LeafSession, cause: str | None) -> None:
        """TLS with the other server has begun, or has failed for this `cause`."""
        assert session.remote is not None
        if cause is None and not session.remote.accepts_certificate(session.link.certificate):
            cause = "certificate not pinned"
        if cause is not None:
            log.error("%s - TLS leafnode handshake error: %s", who(session), cause)
            session.end(None, nats_errors.NATS_CLOSED_TLS)
            return
        session.finish_tls(peer_of(session.link.security, session.link.certificate))
        if session.info_received:
            self._negotiate_or_connect(session, self._offers.pop(session, ""))

    def _negotiate_or_connect(self, session: LeafSession, offer: str) -> None:
        """Begin compression if both sides support it, else send CONNECT."""
        try:
            compressed = self.handshake.negotiate(session, offer)
        except compression.CompressionUnknown as problem:
            log.error("%s - %s", who(session), problem)
            session.end(None, nats_errors.NATS_CLOSED_PROTOCOL)
            return
        if compressed:
            self._negotiating.add(session)
            session.set_deadline(limits.NATS_LEAF_ANSWER)
        else:
            self._connect(session)

    def _connect(self, session: LeafSession) -> None:
        """Send CONNECT."""
        remote, account = session.remote, session.account
        assert remote is not None
        assert account is not None
        try:
            login = sign_in(remote.config, session.nonce or b"", *remote.credentials())
        except CredentialsError as problem:
            log.error("%s - %s", who(session), problem)
            session.end(None, nats_errors.NATS_CLOSED_AUTHENTICATION)
            return
        context = self.handshake.context
        session.send(
            connect_line(
                {
                    "version": nats_limits.NATS_VERSION,
                    **login,
                    "server_id": context.server_id,
                    "name": context.server_name,
                    "is_hub": remote.config.hub,
                    "isolate": remote.config.requests_isolation,
                    "cluster": self.handshake.cluster,
                    "headers": not context.settings.no_header_support,
                    **self.handshake.jetstream_info(),
                    "deny_pub": list(remote.config.deny_imports),
                    "remote_account": account.name,
                    "compress_mode": session.compression,
                }
            )
        )
        session.set_deadline(limits.NATS_LEAF_ANSWER)
        if not remote.answers_connect:
            self._finish(session)

    def _finish(self, session: LeafSession) -> None:
        """Complete the handshake."""
        account = session.account
        assert account is not None
        if session.ready or session.ending:
            return
        cluster = session.peer_cluster
        if cluster and any(
            leaf.peer_cluster == cluster and not leaf.spoke for leaf in account.leafs
        ):
            self.handshake.loop_detected(session)
            return
        if 0 <= account.leafs_max <= len(account.leafs):
            session.end(
                nats_errors.NATS_ACCOUNT_CONNECTIONS, nats_errors.NATS_CLOSED_ACCOUNT_CONNECTIONS
            )
            return
        session.begin()
        self.handshake.begun(session)

    def closed(self, session: LeafSession) -> None:
        """Handle the end of the connection."""
        self._negotiating.discard(session)
        self._offers.pop(session, None)

    def timed_out(self, session: LeafSession) -> None:
        """Handle a missed deadline of the handshake."""
        if session.info_received:
            session.end(errors.NATS_LEAF_STALE, nats_errors.NATS_CLOSED_STALE)
        else:
            session.end(None, nats_errors.NATS_CLOSED_READ)
