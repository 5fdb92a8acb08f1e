"""An NSQ frontend with peers and no sockets, its topics in memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from broker.config.config import Config
from broker.engine.engine import Engine
from broker.protocols.nsq.config import NsqConfig
from broker.protocols.nsq.frontend import NsqFrontend
from broker.protocols.nsq.session import NsqSession
from broker.routing.router import Router
from broker.server.engine import engine_options
from support.fakes.loop import FakeListener, FakeLoop, FakePeer

Frame = tuple[int, bytes]
RESPONSE, ERROR, MESSAGE = range(3)
OK: Frame = (RESPONSE, b"OK")
HEARTBEAT: Frame = (RESPONSE, b"_heartbeat_")


def sized(body: bytes) -> bytes:
    """The body of an NSQ command: its length, then the bytes."""
    return struct.pack(">i", len(body)) + body


def mpub(topic: bytes, *bodies: bytes) -> bytes:
    """A whole MPUB."""
    content = struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
    return b"MPUB " + topic + b"\n" + sized(content)


def pub(topic: bytes, body: bytes) -> bytes:
    """A whole PUB."""
    return b"PUB " + topic + b"\n" + sized(body)


def not_in_flight(command: str, seq: int) -> tuple[int, bytes]:
    text = f"E_{command}_FAILED {command} {seq:016x} failed ID not in flight"
    return ERROR, text.encode()


def message_id(seq: int) -> bytes:
    """The id of a record."""
    return b"%016x" % seq


def frames_of(data: bytes) -> list[Frame]:
    """The frames in these bytes, which end with a frame."""
    found = []
    while data:
        size, kind = struct.unpack_from(">ii", data)
        assert len(data) >= 4 + size
        found.append((kind, data[8 : 4 + size]))
        data = data[4 + size :]
    return found


def shown(frame: Frame) -> tuple[int, int, bytes]:
    """(seq, attempts, body) of a message."""
    kind, payload = frame
    assert kind == MESSAGE
    return int(payload[10:26], 16), int.from_bytes(payload[8:10], "big"), payload[26:]


class NsqPeer(FakePeer):
    """The client of one NSQ connection."""

    def frames(self) -> list[Frame]:
        """The frames received since the last call."""
        return frames_of(self.take())

    def ask(self, data: bytes, cuts: list[int] | None = None) -> list[Frame]:
        """Send bytes, and return the frames of the answer."""
        self.send(data, cuts)
        return self.frames()

    def end_input(self) -> None:
        """Half close."""
        if not self.conn.eof_received():
            self.transport.close()
        self.loop.run()


class FakeNsq:
    """A frontend, its engine, and a clock that the test moves."""

    def __init__(
        self, engine: dict[str, Any] | None = None, root: str | None = None, **settings: Any
    ) -> None:
        authority, access = settings.pop("authority", None), settings.pop("access", None)
        self.loop = FakeLoop()
        self.config = replace(NsqConfig(), **settings)
        self.reports: list[str] = []
        self.engine = Engine(
            self.loop.turn,
            Router(),
            root,
            replace(engine_options(Config()), **(engine or {})),
            lambda _name: "none",
            lambda _level, text, **_details: self.reports.append(text),
        )
        self.frontend = NsqFrontend(
            self.engine, self.loop.turn, self.config, None, authority, access
        )
        self.listener = FakeListener(self.loop, lambda: NsqSession(self.frontend), 1 << 26)

    def dial(self, identify: dict[str, object] | None = None, *, greet: bool = True) -> NsqPeer:
        """A client that has sent the magic and, with `identify`, IDENTIFY."""
        peer = NsqPeer(self.listener)
        if greet:
            peer.send(b"  V2")
        if identify is not None:
            assert peer.ask(b"IDENTIFY\n" + sized(json.dumps(identify).encode())) == [OK]
        return peer

    def consumer(
        self, topic: bytes, ready: int, identify: dict[str, object] | None = None
    ) -> NsqPeer:
        """A peer subscribed to channel c."""
        peer = self.dial(identify)
        assert peer.ask(b"SUB %s c\n" % topic) == [OK]
        peer.send(b"RDY %d\n" % ready)
        return peer

    def close(self) -> None:
        """Stop the engine's threads."""
        for worker in self.engine.shared.workers:
            worker.stop()
            worker.close()


MakeNsq = Callable[..., FakeNsq]
