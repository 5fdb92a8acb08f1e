"""Frames in which nothing stands: they must not keep the loop from everybody else."""

from __future__ import annotations

from typing import Any

import pytest
from support.clients.websocket import BINARY, FIN, PACKED, PING, PONG, frame
from support.fakes.loop import FakeListener, FakeNats, FakePeer

from broker.net import limits
from broker.net.handover import HandoverSession
from broker.net.websocket import WebSocket
from broker.protocols.nats.client.session import NatsSession


class Owner:
    """Of a HandoverSession: it decides nothing."""

    def opened(self, handover: HandoverSession) -> None: ...
    def received(self, handover: HandoverSession, data: bytes) -> None: ...
    def secured(self, handover: HandoverSession, cause: str | None) -> None: ...
    def timed_out(self, handover: HandoverSession) -> None: ...
    def closed(self, handover: HandoverSession) -> None: ...


def accepted(nats: FakeNats, *, compression: bool) -> FakePeer:
    """A client behind frames, past INFO."""
    peer = FakePeer(FakeListener(nats.loop, lambda: HandoverSession(Owner())))
    session: Any = NatsSession(nats.frontend)
    peer.conn.hand_over(session, WebSocket(compression=compression))
    nats.loop.run()
    peer.take()
    return peer


@pytest.mark.parametrize(
    ("wire", "answer"),
    [
        (frame(FIN | BINARY), b""),
        (frame(FIN | BINARY | PACKED), b""),
        (frame(FIN | PING), bytes((FIN | PONG, 0))),
    ],
    ids=["empty", "packed", "ping"],
)
def test_a_flood_is_read_in_parts(wire: bytes, answer: bytes) -> None:
    nats = FakeNats()
    peer = accepted(nats, compression=True)
    peer.read(wire * (limits.WEBSOCKET_FRAMES_MAX // 2))
    assert peer.transport.reading
    peer.read(wire * (2 * limits.WEBSOCKET_FRAMES_MAX))
    assert not peer.transport.reading
    nats.loop.run()
    assert peer.transport.reading
    assert peer.take().endswith(answer)


def test_so_is_one_of_tiny_frames() -> None:
    """In the order they came, and without any of it lost."""
    nats = FakeNats()
    peer = accepted(nats, compression=False)
    operations = b"CONNECT {}\r\n" + b"PING\r\n" * limits.WEBSOCKET_FRAMES_MAX
    peer.read(b"".join(frame(FIN | BINARY, operations[i : i + 1]) for i in range(len(operations))))
    assert not peer.transport.reading
    nats.loop.run()
    assert peer.transport.reading
    assert peer.take().count(b"PONG") == limits.WEBSOCKET_FRAMES_MAX
