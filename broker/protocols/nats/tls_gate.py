"""From accept until a connection's bytes are its operations.

    INFO, handshake                        tls
    INFO, first byte, maybe handshake      allow_non_tls: 0x16 begins TLS, anything else is plain
    handshake, INFO                        handshake_first
    wait; handshake, INFO                  handshake_first with a delay, the client began in time
    wait, INFO, as without it              ... it did not

Nothing that came in plain is ever taken for what came through TLS: as soon as the handshake is
what comes next, all input goes there. Source: nats-server server.go createClientEx.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from broker.base.errors import WireError
from broker.net import errors as net_errors
from broker.protocols.nats import errors
from broker.protocols.nats.tls import peer_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from broker.protocols.nats.auth.authenticator import TlsPeer
    from broker.protocols.nats.tls import TlsPolicy

LOG = logging.getLogger("broker.nats")
# What OpenSSL says of plain text, and of alerts of the other side.
_NO_TLS: Final = {"tls: https proxy request", "tls: http request", "tls: wrong version number"}
_ALERT: Final = re.compile(r"tls: (?:sslv3|tlsv1|tlsv13) alert (.*)")

HANDSHAKE: Final = 0x16  # what TLS begins with


class Link(Protocol):
    """The part of net.conn.Conn that is used here."""

    @property
    def peer(self) -> object: ...
    @property
    def security(self) -> tuple[str, str, str] | None: ...
    @property
    def certificate(self) -> bytes | None: ...
    @property
    def chain(self) -> tuple[bytes, ...]: ...
    def peek(self, timeout_ns: int) -> None: ...
    def secure(self, context: ssl.SSLContext, timeout_ns: int) -> None: ...


class Guarded(Protocol):
    """A session that begins behind a gate."""

    @property
    def link(self) -> Link: ...
    @property
    def client_id(self) -> int: ...
    def end(self, error: WireError | None, why: str) -> None: ...


SessionT = TypeVar("SessionT", bound=Guarded)


class TlsGate(Generic[SessionT]):
    """Of one connection; it is forgotten when the session begins.

    The session's `begun` and `secured` lead here.
    """

    __slots__ = ("begin", "behind_info", "greet", "handshaking", "policy", "session")

    def __init__(
        self,
        policy: TlsPolicy,
        session: SessionT,
        greet: Callable[[SessionT, bool], None],
        begin: Callable[[SessionT, TlsPeer | None], None],
    ) -> None:
        """`greet` puts INFO into the output; True: it comes behind a handshake that came first.

        From `begin` on operations may come; None: in plain.
        """
        self.policy = policy
        self.session = session
        self.greet = greet
        self.begin = begin
        self.behind_info = False
        self.handshaking = False

    def opened(self) -> None:
        """The connection is there."""
        if not self.policy.first:
            self._greet()
        elif self.policy.first_wait_ns:
            self.session.link.peek(self.policy.first_wait_ns)
        else:
            self._secure()

    def begun(self, first: int) -> None:
        """The first byte of input, or -1: none came in time."""
        if not self.behind_info:
            if first < 0:
                self._greet()
            else:
                self._secure()
        elif first == HANDSHAKE:
            self._secure()
        else:
            self.begin(self.session, None)

    def _greet(self) -> None:
        self.behind_info = True
        self.greet(self.session, False)
        if self.policy.optional:
            self.session.link.peek(self.policy.timeout_ns)
        else:
            self._secure()

    def _secure(self) -> None:
        rate = self.policy.rate
        if rate is not None and not rate.allow():
            self.session.end(errors.NATS_TLS_THROTTLED, errors.NATS_CLOSED_CONNECTIONS)
            return
        self.handshaking = True
        self.session.link.secure(self.policy.context, self.policy.timeout_ns)

    def secured(self, cause: str | None) -> None:
        """The handshake is over; `cause`: why it failed."""
        self.handshaking = False
        link = self.session.link
        peer = None if cause is not None else peer_of(link.security, link.certificate)
        if peer is not None and self.policy.admits(peer.der):
            peer.chain = link.chain
            if not self.behind_info:
                self.greet(self.session, True)
            self.begin(self.session, peer)
            return
        self._failed(cause or "certificate not pinned")
        self.session.end(None, errors.NATS_CLOSED_TLS)

    def lost(self) -> str:
        """The connection is gone; how that is spoken of."""
        if not self.handshaking:
            return errors.NATS_CLOSED_CLIENT
        self._failed("EOF")
        return errors.NATS_CLOSED_TLS

    def _failed(self, cause: str) -> None:
        peer = self.session.link.peer
        where = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        if cause == net_errors.TLS_TIMED_OUT:
            LOG.error("%s - cid:%d - TLS handshake timeout", where, self.session.client_id)
        else:
            cause = plainly(cause)
            LOG.error("%s - cid:%d - TLS handshake error: %s", where, self.session.client_id, cause)


def plainly(cause: str) -> str:
    """OpenSSL's reason in words that help: it takes a CONNECT of NATS for one of HTTP."""
    if cause in _NO_TLS:
        return "tls: first record does not look like a TLS handshake"
    if match := _ALERT.fullmatch(cause):
        return f"remote error: tls: {match[1]}"
    return cause
