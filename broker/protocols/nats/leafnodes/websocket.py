"""Joining a server through its WebSocket door: the request, and what is made of the answer.

    dialled -> (TLS) -> GET .../leafnode -> 101 -> LeafSession behind a WebSocket filter

Source: nats-server leafnode.go leafNodeSolicitWSConnection.
"""

from __future__ import annotations

import base64
import logging
import os
from typing import TYPE_CHECKING, Final

from broker.net import errors
from broker.net import limits as net_limits
from broker.net.upgrade import HEAD_END, Answer, NotHttp, read_answer
from broker.net.websocket import WebSocket, accept_key
from broker.protocols.nats.leafnodes import limits
from broker.protocols.nats.leafnodes.session import LeafSession
from broker.protocols.nats.tls import peer_of
from broker.protocols.nats.websocket import LEAF, LEAF_PATH, NO_MASKING, PMCE, close_status

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from broker.net.handover import Knock
    from broker.protocols.nats.auth.authenticator import TlsPeer
    from broker.protocols.nats.leafnodes.remote import RemoteLink

log = logging.getLogger("broker.nats")

_KEY_BYTES: Final = 16
_EXTENSION: Final = "permessage-deflate"
_NO_CONTEXT: Final = frozenset({"server_no_context_takeover", "client_no_context_takeover"})


class Call:
    """Of one connection that was dialled: what its Knock is told of."""

    def __init__(self, remote: RemoteLink, url: SplitResult) -> None:
        self.remote = remote
        self.url = url
        self._key = base64.b64encode(os.urandom(_KEY_BYTES)).decode()
        self._tls_peer: TlsPeer | None = None

    @property
    def _secret(self) -> bool:
        return self.url.scheme == "wss" or self.remote.config.tls is not None

    def opened(self, knock: Knock) -> None:
        """The connection is there."""
        if self._secret:
            problem = self.remote.begin_tls(knock.link)
            if problem:
                self.secured(knock, problem)
        else:
            self._ask(knock)

    def secured(self, knock: Knock, cause: str | None) -> None:
        """TLS is there, or (cause) it is not."""
        if cause is None and not self.remote.knows(knock.link.certificate):
            cause = "certificate not pinned"
        if cause is not None:
            log.error("%s - TLS leafnode handshake error: %s", self.remote.peer, cause)
            knock.link.close()
            return
        self._tls_peer = peer_of(knock.link.security, knock.link.certificate)
        self._ask(knock)

    def _ask(self, knock: Knock) -> None:
        config = self.remote.config
        lines = [
            f"GET {self.url.path.rstrip('/')}{LEAF_PATH} HTTP/1.1",
            f"Host: {self.url.netloc.rpartition('@')[2]}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {self._key}",
            "Sec-WebSocket-Version: 13",
        ]
        if config.ws_compression:
            lines.append(f"Sec-WebSocket-Extensions: {PMCE}")
        if config.ws_no_masking:
            lines.append(f"{NO_MASKING}: true")
        knock.say("\r\n".join([*lines, "", ""]).encode())
        knock.wait(limits.NATS_LEAF_INFO)

    def heard(self, knock: Knock, data: bytes) -> None:
        """A part of the answer, perhaps with what comes behind it."""
        knock.head += data
        head, end, early = bytes(knock.head).partition(HEAD_END)
        if not end:
            if len(head) > net_limits.WEBSOCKET_REQUEST_MAX:
                self._give_up(knock, errors.HTTP_TOO_LARGE)
            return
        try:
            answer = read_answer(head)
            compression = self._check(answer)
        except (NotHttp, ValueError) as problem:
            self._give_up(knock, str(problem))
            return
        masks = answer.first(NO_MASKING.lower()) != "true"
        frames = WebSocket(compression=compression, masked=False, masks=masks)
        session = LeafSession(self.remote.nodes.server.face, self.remote.nodes.gate, self.remote)
        session.kind, session.tls_peer = LEAF, self._tls_peer
        frames.status = lambda: close_status(session)
        knock.wait(0)
        self.remote.session = session
        knock.link.hand_over(session, frames, early)

    def _check(self, answer: Answer) -> bool:
        """Whether messages may be compressed; ValueError when this is no WebSocket."""
        if (
            answer.status != 101
            or not answer.says("upgrade", "websocket")
            or not answer.says("connection", "upgrade")
            or answer.first("sec-websocket-accept") != accept_key(self._key)
        ):
            raise ValueError("invalid websocket connection")
        wanted = answer.first("sec-websocket-extensions")
        if not wanted:
            return False
        name, *parts = (part.strip() for part in wanted.split(";"))
        agreed = self.remote.config.ws_compression and name == _EXTENSION
        if not agreed or not _NO_CONTEXT.issubset(parts):
            raise ValueError("compression negotiation error")
        return True

    def _give_up(self, knock: Knock, why: str) -> None:
        log.error("Error soliciting websocket connection: %s", why)
        knock.wait(0)
        knock.link.abort()

    def late(self, knock: Knock) -> None:
        """The answer has not come."""
        self._give_up(knock, "timed out")

    def left(self, knock: Knock) -> None:  # noqa: ARG002
        """It is gone."""
        self.remote.ended()
