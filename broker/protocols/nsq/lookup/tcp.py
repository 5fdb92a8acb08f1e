"""The TCP side of nsqlookupd: the protocol V1 of nsqd.

    client: "  V1", then lines; IDENTIFY's is followed by int32 size and JSON
    server: int32 size, data; without a type. Every error ends the connection.

A peer that does not identify itself, or is silent for too long, is disconnected. At most one
unfinished line or body of a peer is buffered. A peer that does not read its answers is not read.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.engine.names import is_name
from broker.net.listener import descriptor, files_are_short
from broker.protocols.nsq import errors as nsq_errors
from broker.protocols.nsq import limits
from broker.protocols.nsq.identify import INT, Refused, read_fields
from broker.protocols.nsq.lookup import errors
from broker.protocols.nsq.lookup.registry import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.protocols.nsq.lookup.registry import Entry, Registry

LOG = logging.getLogger("broker.nsqlookupd")

_MAGIC: Final = b"  V1"
_SIZE_BYTES: Final = 4
_GO_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_FIELDS: Final[dict[str, int | type]] = {
    "remote_address": str,
    "hostname": str,
    "broadcast_address": str,
    "tcp_port": INT,
    "http_port": INT,
    "version": str,
    "topology_zone": str,
    "topology_region": str,
}
_REQUIRED: Final = ("broadcast_address", "tcp_port", "http_port", "version")


def _nothing() -> bool:
    """The parser step after the end of the connection."""
    return False


@dataclass(frozen=True, slots=True)
class Peers:
    """State shared by all connections of one nsqlookupd."""

    registry: Registry
    now_ns: Callable[[], int]  # monotonic
    silence_max_ns: int  # a peer that is silent for longer is disconnected
    identity: Callable[[], dict[str, Any]]  # the answer to IDENTIFY
    connections: set[LookupPeer] = field(default_factory=set)  # open connections


class LookupPeer(asyncio.Protocol):
    """One connection of a nsqd."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.registry = peers.registry
        self.producer: Producer | None = None
        self.name = ""  # the peer's address
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()  # received bytes of an incomplete step
        self._step = self._read_magic
        self._body_bytes = 0
        self._full = False  # the output buffer is full: the peer does not read
        self._later = False  # parsing continues in the next pass of the loop
        self._made = 0  # keys that this connection has created
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None  # until IDENTIFY, then until the next PING
        self._command_ns = 0  # time of the last command

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        host, port = self._transport.get_extra_info("peername")[:2]
        self.name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if files_are_short(descriptor(transport)):  # logs of this process need the last descriptors
            self._closing = True
            self._transport.abort()
            return
        self.peers.connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(
            limits.NSQ_GREETING / SECOND, self._transport.abort
        )
        LOG.info("TCP: new client(%s)", self.name)

    def data_received(self, data: bytes) -> None:
        self._held += data
        self._work()

    def eof_received(self) -> None:
        """Report which part of an unfinished command is missing."""
        if self._step == self._read_size:
            self._fail(Refused(nsq_errors.NSQ_BODY_SIZE_UNREAD, command="IDENTIFY"))
        elif self._step == self._read_body:
            self._fail(Refused(nsq_errors.NSQ_BODY_UNREAD, command="IDENTIFY"))

    def pause_writing(self) -> None:
        self._full = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        if self._transport is not None and not self._closing:
            self._transport.resume_reading()
            self._work()

    def connection_lost(self, _error: Exception | None) -> None:
        self._stop_timer()
        self._closing = True
        self.peers.connections.discard(self)
        LOG.info("PROTOCOL(V1): [%s] exiting ioloop", self.name)
        if self.producer is not None:
            self._leave(self.registry.leave(self.producer))
        # break the reference cycle, because the garbage collector runs rarely
        self._transport, self._step = None, _nothing

    def _leave(self, left: Iterator[Entry]) -> None:
        """Remove registrations, of which a peer may have very many."""
        stop_ns = self.peers.now_ns() + limits.NSQ_LOOKUP_TURN
        for entry in left:
            self._note("UNREGISTER", [entry])
            if self.peers.now_ns() >= stop_ns:
                asyncio.get_running_loop().call_soon(self._leave, left)
                return

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_for(self, ns: int) -> None:
        """Check after this time whether the peer has sent a command."""
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(ns / SECOND, self._check_silence)

    def _check_silence(self) -> None:
        self._timer = None
        left_ns = self._command_ns + self.peers.silence_max_ns - self.peers.now_ns()
        if left_ns > 0:
            self._watch_for(left_ns)
        elif self._transport is not None:
            LOG.info("CLIENT(%s): silent for too long", self.name)
            self._transport.abort()

    def close(self) -> None:
        """End the connection after its answers are sent."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # --- reading

    def _work(self) -> None:
        left = limits.NSQ_LOOKUP_STEPS
        stop_ns = self.peers.now_ns() + limits.NSQ_LOOKUP_TURN
        try:
            while not (self._closing or self._full or self._later) and self._step():
                left -= 1
                if not left or self.peers.now_ns() >= stop_ns:
                    # let other connections run first
                    self._later = True
                    if self._transport is not None:
                        self._transport.pause_reading()
                    asyncio.get_running_loop().call_soon(self._work_on)
        except Refused as refusal:
            self._fail(refusal)

    def _work_on(self) -> None:
        self._later = False
        if self._closing or self._transport is None:
            return
        self._work()
        if not (self._later or self._full or self._closing):
            self._transport.resume_reading()

    def _fail(self, refusal: Refused) -> None:
        LOG.error("[%s] - %s", self.name, refusal.payload.decode("utf-8", "replace"))
        self._answer(refusal.payload)
        self.close()

    def _answer(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(len(data).to_bytes(_SIZE_BYTES, "big") + data)

    def _take(self, count: int) -> bytes | None:
        if len(self._held) < count:
            return None
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken

    def _read_magic(self) -> bool:
        magic = self._take(len(_MAGIC))
        if magic is None:
            return False
        LOG.info(
            "CLIENT(%s): desired protocol magic '%s'", self.name, magic.decode("utf-8", "replace")
        )
        if magic != _MAGIC:
            raise Refused(nsq_errors.NSQ_PROTOCOL)
        self._step = self._read_line
        return True

    def _read_line(self) -> bool:
        end = self._held.find(b"\n", 0, limits.NSQ_LOOKUP_LINE_MAX)
        if end < 0:
            if len(self._held) >= limits.NSQ_LOOKUP_LINE_MAX:
                self.close()  # nsqd ends the connection too if a line is too long
            return False
        line = self._take(end + 1) or b""
        self._execute(line.decode("utf-8", "surrogateescape").strip(_GO_SPACE).split(" "))
        return True

    def _read_size(self) -> bool:
        size = self._take(_SIZE_BYTES)
        if size is None:
            return False
        number = int.from_bytes(size, "big", signed=True)
        if number < 0:
            raise Refused(nsq_errors.NSQ_BODY_SIZE, command="IDENTIFY", number=number)
        most = limits.NSQ_LOOKUP_BODY_MAX
        if number > most:
            raise Refused(nsq_errors.NSQ_BODY_BIG, command="IDENTIFY", number=number, most=most)
        self._body_bytes = number
        self._step = self._read_body
        return True

    def _read_body(self) -> bool:
        body = self._take(self._body_bytes)
        if body is None:
            return False
        self._step = self._read_line
        self._identify(body)
        return True

    # --- commands

    def _execute(self, words: list[str]) -> None:
        self._command_ns = self.peers.now_ns()
        command, parameters = words[0], words[1:]
        if command == "PING":
            self._ping()
        elif command == "IDENTIFY":
            if self.producer is not None:
                raise Refused(errors.NSQ_LOOKUP_IDENTIFIED)
            self._step = self._read_size
        elif command == "REGISTER":
            self._register(parameters)
        elif command == "UNREGISTER":
            self._unregister(parameters)
        else:
            raise Refused(nsq_errors.NSQ_COMMAND, command=command)

    def _ping(self) -> None:
        if self.producer is not None:
            now_ns = self.peers.now_ns()
            LOG.info(
                "CLIENT(%s): pinged (last ping %ss)",
                self.name,
                (now_ns - self.producer.seen_ns) / SECOND,
            )
            self.registry.ping(self.producer, now_ns)
        self._answer(b"OK")

    def _identify(self, body: bytes) -> None:
        said = read_fields(body, _FIELDS)
        if not all(said.get(name) for name in _REQUIRED):
            raise Refused(errors.NSQ_LOOKUP_FIELDS)
        said["remote_address"] = self.name
        fields: dict[str, Any] = {
            name: said.get(name, "" if kind is str else 0) for name, kind in _FIELDS.items()
        }
        self.producer = Producer(self.name, fields, self.peers.now_ns())
        LOG.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            *(self.name, fields["broadcast_address"], fields["tcp_port"], fields["http_port"]),
            fields["version"],
        )
        self._watch_for(self.peers.silence_max_ns)
        self.registry.join(self.producer)
        self._note("REGISTER", [self.registry.clients])
        self._answer(orjson.dumps(self.peers.identity()))

    def _names(self, command: str, parameters: list[str]) -> tuple[Producer, str, str]:
        if self.producer is None:
            raise Refused(errors.NSQ_LOOKUP_IDENTIFY_FIRST)
        if not parameters:
            raise Refused(nsq_errors.NSQ_PARAMS, command=command)
        topic, channel = (*parameters, "")[:2]
        if not is_name(topic.encode("utf-8", "surrogateescape")):
            raise Refused(errors.NSQ_LOOKUP_TOPIC, command=command, name=topic)
        if channel and not is_name(channel.encode("utf-8", "surrogateescape")):
            raise Refused(errors.NSQ_LOOKUP_CHANNEL, command=command, name=channel)
        return self.producer, topic, channel

    def _register(self, parameters: list[str]) -> None:
        producer, topic, channel = self._names("REGISTER", parameters)
        if self._made >= limits.NSQ_LOOKUP_KEYS_MAX:
            raise Refused(errors.NSQ_LOOKUP_KEYS)
        new = self.registry.register(producer, topic, channel)
        self._made += len(new)  # keys stay after UNREGISTER
        self._note("REGISTER", new)
        self._answer(b"OK")

    def _unregister(self, parameters: list[str]) -> None:
        producer, topic, channel = self._names("UNREGISTER", parameters)
        self._note("UNREGISTER", self.registry.unregister(producer, topic, channel))
        self._answer(b"OK")

    def _note(self, what: str, entries: list[Any]) -> None:
        if not LOG.isEnabledFor(logging.INFO):
            return
        for entry in entries:
            LOG.info(
                "DB: client(%s) %s category:%s key:%s subkey:%s",
                *(self.name, what, entry.category, entry.key, entry.subkey),
            )
