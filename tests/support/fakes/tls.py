"""A NATS server with TLS and its peers, without sockets."""

from __future__ import annotations

import contextlib
import ssl
from dataclasses import replace
from typing import Any

from broker.protocols.nats.settings import Tls
from broker.protocols.nats.tls import TlsPolicy
from support.authority import Pair
from support.fakes.loop import FakeNats, FakePeer


class Secure:
    """The far end of a connection, its TLS done in memory."""

    def __init__(self, peer: FakePeer, context: ssl.SSLContext) -> None:
        self.peer = peer
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.link = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def next(self) -> bytes:
        """What the handshake sends now; empty: it is done and has nothing more to say."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.link.do_handshake()
        return self.outgoing.read()

    def shake(self, *, bytewise: bool = False) -> None:
        while said := self.next():
            self.peer.send(said, list(range(len(said))) if bytewise else None)
            self.incoming.write(self.peer.take())

    def read(self) -> bytes:
        self.incoming.write(self.peer.take())
        parts = []
        try:
            while part := self.link.read(1 << 16):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def talk(self, data: bytes) -> bytes:
        self.link.write(data)
        self.peer.send(self.outgoing.read())
        return self.read()


class Server(FakeNats):
    """One with TLS."""

    def __init__(self, pair: Pair, *, allow_non_tls: bool = False, **tls: Any) -> None:
        super().__init__()
        settings = replace(Tls(str(pair.certificate), str(pair.key)), **tls)
        self.policy = self.handshake.tls = TlsPolicy(settings, allow_non_tls=allow_non_tls)
        self.handshake.set_info(self.handshake.info | self.policy.info())

    def arrive(self) -> FakePeer:
        return FakePeer(self.listener)
