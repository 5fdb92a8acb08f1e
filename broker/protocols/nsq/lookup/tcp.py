"""The V1 protocol of nsqlookupd: nsqds say what they have, one connection each.

Replies carry their size and no type; every error ends the connection.
Source: nsqlookupd/lookup_protocol_v1.go.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Final, cast

import orjson

from broker import errors, limits
from broker.errors import nsq_text
from broker.protocols.nsq.identify import INT, Refused, read_fields
from broker.protocols.nsq.lookup.registry import Node
from broker.protocols.nsq.wire import is_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.errors import WireError
    from broker.protocols.nsq.lookup.registry import Registry

LOG = logging.getLogger("broker.nsqlookupd")

MAGIC: Final = b"  V1"
_SIZE: Final = struct.Struct(">i")


_FIELDS: Final[dict[str, int | type]] = {
    "broadcast_address": str,
    "tcp_port": INT,
    "http_port": INT,
    "version": str,
    "hostname": str,
    "topology_zone": str,
    "topology_region": str,
}
_REQUIRED: Final = ("broadcast_address", "tcp_port", "http_port", "version")


class _RefusedError(Exception):
    def __init__(self, error: WireError, **parts: str) -> None:
        super().__init__()
        self.payload = nsq_text(error, **parts)


class LookupSession(asyncio.Protocol):
    """One nsqd."""

    def __init__(
        self,
        registry: Registry,
        sessions: set[LookupSession],
        about: Callable[[], dict[str, object]],
    ) -> None:
        """`about()` is what IDENTIFY is answered with."""
        self.registry = registry
        self.sessions = sessions
        self.about = about
        self.node: Node | None = None
        self.peer = ""
        self.received = bytearray()
        self.greeted = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.sessions.add(self)
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        LOG.info("TCP: new client(%s)", self.peer)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.transport = None
        self.sessions.discard(self)
        LOG.info("PROTOCOL(V1): [%s] exiting ioloop", self.peer)
        if self.node is not None:
            self.registry.leave(self.node)

    def eof_received(self) -> None:
        if self.received.startswith(b"IDENTIFY") and self.node is None and self.transport:
            head = self.received.find(b"\n") + 1
            text = (
                errors.NSQ_BODY_SIZE_UNREAD
                if len(self.received) < head + _SIZE.size
                else errors.NSQ_BODY_UNREAD
            )
            self.reply(nsq_text(text, command="IDENTIFY"))

    def data_received(self, data: bytes) -> None:
        self.received += data
        try:
            while self.transport is not None and self.step():
                pass
        except _RefusedError as refusal:
            LOG.error("[%s] - %s", self.peer, refusal.payload.decode("utf-8", "replace"))
            self.reply(refusal.payload)
            self.end()

    def end(self) -> None:
        """Close behind what was written."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None

    def reply(self, payload: bytes) -> None:
        if self.transport is None:
            return
        self.transport.write(_SIZE.pack(len(payload)) + payload)
        if self.transport.get_write_buffer_size() > limits.LOOKUP_PENDING_MAX:
            LOG.warning("[%s] does not read its answers", self.peer)
            self.transport.abort()
            self.transport = None

    def step(self) -> bool:
        """Do one command; False when it is not all there."""
        if not self.greeted:
            if len(self.received) < len(MAGIC):
                return False
            magic = bytes(self.received[: len(MAGIC)])
            LOG.info("CLIENT(%s): desired protocol magic '%s'", self.peer, magic.decode("latin-1"))
            if magic != MAGIC:
                raise _RefusedError(errors.NSQ_PROTOCOL)
            del self.received[: len(MAGIC)]
            self.greeted = True
        end = self.received.find(b"\n")
        if end < 0:
            if len(self.received) > limits.LOOKUP_LINE_MAX:
                self.end()
            return False
        line = bytes(self.received[:end]).decode("utf-8", "surrogateescape").strip()
        command, *params = line.split(" ")
        if command == "IDENTIFY":
            return self.identify(end + 1)
        del self.received[: end + 1]
        if command == "PING":
            if self.node is not None:
                self.registry.ping(self.node)
            self.reply(b"OK")
        elif command in {"REGISTER", "UNREGISTER"}:
            self.register(command, params)
        else:
            raise _RefusedError(errors.LOOKUP_COMMAND, command=command)
        return True

    def identify(self, start: int) -> bool:
        if self.node is not None:
            raise _RefusedError(errors.LOOKUP_AGAIN)
        if len(self.received) < start + _SIZE.size:
            return False
        (size,) = _SIZE.unpack_from(self.received, start)
        if not 0 <= size <= limits.LOOKUP_BODY_MAX:
            raise _RefusedError(errors.NSQ_BODY_SIZE, command="IDENTIFY", number=str(size))
        end = start + _SIZE.size + size
        if len(self.received) < end:
            return False
        body = bytes(self.received[start + _SIZE.size : end])
        del self.received[:end]
        self.node = node = self.node_from(body)
        self.registry.join(node)
        LOG.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self.peer,
            node.broadcast_address,
            node.tcp_port,
            node.http_port,
            node.version,
        )
        self.reply(orjson.dumps(self.about()))
        return True

    def node_from(self, body: bytes) -> Node:
        try:
            found = read_fields(body, _FIELDS)
        except Refused:
            raise _RefusedError(errors.LOOKUP_JSON) from None
        if not all(found.get(name) for name in _REQUIRED):
            raise _RefusedError(errors.LOOKUP_FIELDS)
        return Node(id=self.peer, **found)

    def register(self, command: str, params: list[str]) -> None:
        """REGISTER and UNREGISTER."""
        node = self.node
        if node is None:
            raise _RefusedError(errors.LOOKUP_IDENTIFY_FIRST)
        if not params:
            raise _RefusedError(errors.LOOKUP_PARAMS, command=command)
        topic, channel = params[0], params[1] if len(params) > 1 else ""
        for name, error in ((topic, errors.LOOKUP_TOPIC), (channel, errors.LOOKUP_CHANNEL)):
            if not is_name(name.encode("utf-8", "surrogateescape")) and (
                name or error is errors.LOOKUP_TOPIC
            ):
                raise _RefusedError(error, command=command, name=name)
        if command == "REGISTER":
            if self.registry.register(node, topic, channel):
                LOG.info("DB: client(%s) REGISTER topic:%s channel:%s", self.peer, topic, channel)
        elif channel:
            self.registry.unregister_channel(node, topic, channel)
            LOG.info("DB: client(%s) UNREGISTER topic:%s channel:%s", self.peer, topic, channel)
        else:
            self.registry.unregister(node, topic)
            LOG.info("DB: client(%s) UNREGISTER topic:%s", self.peer, topic)
        self.reply(b"OK")
