"""Leaf connections without sockets: peers of a server whose clock the test drives."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from broker.protocols.nats.leafnodes import limits
from broker.protocols.nats.leafnodes.leafnodes import LeafNodes
from broker.protocols.nats.leafnodes.session import LeafSession
from broker.protocols.nats.settings import Leafnodes, Settings
from support.fakes.loop import FakeListener, FakeNats, FakePeer


class LeafPeer(FakePeer):
    """The other end of a leaf connection; `wants` are the announced subscriptions."""

    def __init__(self, listener: FakeListener) -> None:
        super().__init__(listener)
        self.wants: dict[bytes, int] = {}

    def hear(self) -> list[bytes]:
        """What arrived since the last call; interest goes to `wants`, the rest comes back."""
        rest = []
        for line in self.take().split(b"\r\n")[:-1]:
            words = line.split(b" ")
            if words[0] == b"LS+":
                self.wants[b" ".join(words[1:3])] = int(words[3]) if len(words) > 3 else 1
            elif words[0] == b"LS-":
                del self.wants[b" ".join(words[1:])]
            else:
                rest.append(line)
        return rest


class FakeLeafs:
    """A server with clients and leafs."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("leafnodes", Leafnodes(listen=("127.0.0.1", 7422)))
        self.nats = FakeNats(**settings)
        self.loop, self.router = self.nats.loop, self.nats.router
        server = SimpleNamespace(
            jetstream=None,
            settings=Settings(**settings),
            runtime=self.loop,
            server_id="N",
            server_name="here",
            frontend=self.nats.frontend,
            handshake=self.nats.handshake,
            system_account=None,
        )
        self.nodes = LeafNodes(server)  # type: ignore[arg-type]
        self.nodes.update_info("127.0.0.1", 7422)
        self.listener = FakeListener(
            self.loop,
            lambda: LeafSession(self.nats.frontend, self.nodes.handshake),
            limits.NATS_LEAF_PENDING,
        )

    def dial(self, listener: FakeListener | None = None) -> LeafPeer:
        """A peer that has read INFO."""
        peer = LeafPeer(listener or self.listener)
        assert peer.take().startswith(b"INFO ")
        return peer

    def join(self, listener: FakeListener | None = None, **fields: Any) -> LeafPeer:
        """A peer after its handshake."""
        peer = self.dial(listener)
        said = {"name": "peer", "headers": True, **fields}
        peer.send(b"CONNECT " + json.dumps(said).encode() + b"\r\n")
        (info,) = peer.hear()
        assert b'"connect_info":true' in info
        return peer
