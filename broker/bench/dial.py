"""Opens the connections of the load generator: blocking handshakes, before the measurement."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import TypeVar

import orjson
from google.protobuf.message import DecodeError, Message

from broker.bench.limits import (
    ACK_WAIT_SECONDS,
    CONNECT_SECONDS,
    FLUSH_MS,
    RETRY_SECONDS,
    SERVICE_SECONDS,
    SIZE_BYTES_MAX,
)
from broker.bench.loadgen import LoadError
from broker.protocols.stan import stan_pb2 as pb

CLIENT_NAME = "twinwire-bench"
Dialled = tuple[socket.socket, bytes]

_CONNECT: dict[str, object] = {
    "verbose": False,
    "pedantic": False,
    "lang": "cython",
    "version": "1",
    "name": CLIENT_NAME,
    "protocol": 1,
}
_IDENTIFY = orjson.dumps(
    {
        "client_id": CLIENT_NAME,
        "hostname": CLIENT_NAME,
        "feature_negotiation": True,
        "output_buffer_timeout": FLUSH_MS,
    }
)
_FRAME_ERROR = 1


SID_DATA, SID_HEARTBEAT, SID_ANSWER = b"1", b"2", b"3"  # bench/stan.pyx uses the same values
GUID_DIGITS = b"0" * 16  # GUID_HEX digits of bench/stan.pyx, which replaces them
# With the digits, a guid is as long as that of the usual clients.
GUID_HEAD = b"bench-"
PROTOCOL = 1  # clients of this level send connID and pings
PING_SECONDS = 5
PING_MAX_OUT = 88
Answer = TypeVar("Answer", bound=Message)


class Peer:
    """One connection while it is being set up."""

    def __init__(self, address: tuple[str, int]) -> None:
        try:
            self.sock = socket.create_connection(address, CONNECT_SECONDS)
        except OSError as error:
            raise LoadError(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unread = b""

    def receive(self) -> None:
        try:
            data = self.sock.recv(65536)
        except TimeoutError as error:
            raise LoadError("no answer to the handshake") from error
        except OSError as error:
            raise LoadError(f"handshake failed: {error.strerror}") from error
        if not data:
            raise LoadError("the server closed the connection during the handshake")
        self.unread += data

    def line(self) -> bytes:
        while b"\n" not in self.unread:
            self.receive()
        line, _, self.unread = self.unread.partition(b"\n")
        return line.rstrip(b"\r")

    def read(self, size: int) -> bytes:
        while len(self.unread) < size:
            self.receive()
        data, self.unread = self.unread[:size], self.unread[size:]
        return data

    def frame(self) -> bytes:
        while len(self.unread) < 8:
            self.receive()
        end = 4 + int.from_bytes(self.unread[:4], "big")
        if end > SIZE_BYTES_MAX:
            raise LoadError("the server is not an NSQ server")
        while len(self.unread) < end:
            self.receive()
        kind, payload = int.from_bytes(self.unread[4:8], "big"), self.unread[8:end]
        self.unread = self.unread[end:]
        if kind == _FRAME_ERROR:
            raise LoadError(f"the server refused the handshake: {payload.decode()}")
        return payload


def connect_line(**options: bool) -> bytes:
    """CONNECT without the end of its line."""
    return b"CONNECT " + orjson.dumps(_CONNECT | options)


def dial_nats(
    address: tuple[str, int],
    subscriptions: list[bytes] | None = None,
    *,
    headers: bool = False,
    no_responders: bool = False,
) -> Dialled:
    """Connect and subscribe; return after the PONG that follows the subscriptions."""
    peer = Peer(address)
    try:
        if not peer.line().startswith(b"INFO"):
            raise LoadError(f"{address[0]}:{address[1]} is not a NATS server")
        options = {"no_responders": True} if no_responders else {}
        lines = [connect_line(headers=headers, **options), *(subscriptions or []), b"PING"]
        peer.sock.sendall(b"\r\n".join(lines) + b"\r\n")
        while (line := peer.line()) != b"PONG":
            if line.startswith(b"-ERR"):
                raise LoadError(f"the server refused the handshake: {line.decode()}")
            if line == b"PING":
                peer.sock.sendall(b"PONG\r\n")
    except BaseException:
        peer.sock.close()
        raise
    return peer.sock, peer.unread


def ask_jetstream(
    address: tuple[str, int], verb: str, body: dict[str, object] | None = None
) -> dict[str, object]:
    """Send one request to the API of JetStream. LoadError: it has no responder or is refused."""
    inbox = f"_INBOX.{os.urandom(8).hex()}".encode()
    sock, unread = dial_nats(address, [b"SUB %s 1" % inbox], headers=True, no_responders=True)
    peer = Peer.__new__(Peer)
    peer.sock, peer.unread = sock, unread
    with sock:
        data = orjson.dumps(body) if body else b""
        sock.sendall(b"PUB $JS.API.%s %s %d\r\n%s\r\n" % (verb.encode(), inbox, len(data), data))
        while True:
            words = peer.line().split()
            if words[:1] == [b"PING"]:
                sock.sendall(b"PONG\r\n")
            elif words[:1] == [b"HMSG"]:
                raise LoadError(f"{address[0]}:{address[1]} has no JetStream")
            elif words[:1] == [b"MSG"]:
                break
        answer: dict[str, object] = orjson.loads(peer.read(int(words[-1])))
    if (error := answer.get("error")) is not None:
        raise LoadError(f"{verb} is refused: {error}")
    return answer


def dial_nsq(
    address: tuple[str, int], subscribe: tuple[str, str] | None = None, rdy: int = 0
) -> Dialled:
    """Connect and, for a consumer, subscribe to (topic, channel) and send RDY."""
    peer = Peer(address)
    try:
        size = len(_IDENTIFY).to_bytes(4, "big")
        peer.sock.sendall(b"  V2IDENTIFY\n" + size + _IDENTIFY)
        peer.frame()
        if subscribe is not None:
            topic, channel = subscribe
            peer.sock.sendall(f"SUB {topic} {channel}\n".encode())
            while peer.frame() == b"_heartbeat_":
                peer.sock.sendall(b"NOP\n")
            peer.sock.sendall(f"RDY {rdy}\n".encode())
    except BaseException:
        peer.sock.close()
        raise
    return peer.sock, peer.unread


@dataclass(frozen=True)
class Streaming:
    """A channel of NATS Streaming: the NATS server, the cluster id and the channel's name."""

    address: tuple[str, int]
    cluster: str
    channel: str


class StanPeer:
    """One client: a connection with three subscriptions."""

    def __init__(self, service: Streaming) -> None:
        self.channel = service.channel
        self.client_id = f"bench-{os.urandom(8).hex()}"
        self.conn_id = os.urandom(11).hex().encode()
        self.inbox = f"_INBOX.{os.urandom(11).hex()}"
        self.heartbeats = f"_INBOX.{os.urandom(11).hex()}"
        self.answers = f"_INBOX.{os.urandom(11).hex()}"
        self.peer = Peer(service.address)
        try:
            self._subscribe(service.address)
            request = pb.ConnectRequest(
                clientID=self.client_id,
                heartbeatInbox=self.heartbeats,
                protocol=PROTOCOL,
                connID=self.conn_id,
                pingInterval=PING_SECONDS,
                pingMaxOut=PING_MAX_OUT,
            )
            discover = f"_STAN.discover.{service.cluster}"
            self.subjects = self.ask(discover, request, pb.ConnectResponse)
        except BaseException:
            self.peer.sock.close()
            raise

    def _subscribe(self, address: tuple[str, int]) -> None:
        peer = self.peer
        if not peer.line().startswith(b"INFO"):
            raise LoadError(f"{address[0]}:{address[1]} is not a NATS server")
        # no_responders distinguishes a service that has not started from one that is slow.
        lines = [
            connect_line(headers=True, no_responders=True),
            *(
                b"SUB %s %s" % (subject.encode(), sid)
                for subject, sid in (
                    (self.inbox, SID_DATA),
                    (self.heartbeats, SID_HEARTBEAT),
                    (self.answers, SID_ANSWER),
                )
            ),
        ]
        peer.sock.sendall(b"\r\n".join(lines) + b"\r\n")

    def ask(self, subject: str, request: Message, kind: type[Answer]) -> Answer:
        """Send a request and return the response; repeat the request for SERVICE_SECONDS while it
        has no responder. LoadError."""
        deadline = time.monotonic() + SERVICE_SECONDS
        while True:
            self.peer.sock.sendall(self.line(subject, request, self.answers))
            found = self._answer()
            if found is not None:
                break
            if time.monotonic() > deadline:
                raise LoadError(f"no service answers on {subject}")
            time.sleep(RETRY_SECONDS)
        answer = kind()
        try:
            answer.ParseFromString(found)
        except DecodeError as error:
            raise LoadError(f"{subject} is not answered by NATS Streaming") from error
        if refusal := getattr(answer, "error", ""):
            raise LoadError(f"the server refused the handshake: {refusal}")
        return answer

    def _answer(self) -> bytes | None:
        """Read the next message of the inbox for responses. None: the request had no responder."""
        while True:
            line = self.peer.line()
            verb, *words = line.split()
            if verb == b"-ERR":
                raise LoadError(f"the server refused the handshake: {line.decode()}")
            if verb == b"PING":
                self.peer.sock.sendall(b"PONG\r\n")
            if verb not in {b"MSG", b"HMSG"}:
                continue
            body = self.peer.read(int(words[-1]) + 2)[:-2]
            if words[1] == SID_HEARTBEAT:
                self.peer.sock.sendall(b"PUB %s 0\r\n\r\n" % words[2])
            elif words[1] == SID_ANSWER:
                return body if verb == b"MSG" else None

    @staticmethod
    def line(subject: str, message: Message, reply: str = "") -> bytes:
        """A PUB with its payload."""
        payload = message.SerializeToString()
        names = f"{subject} {reply}".strip().encode()
        return b"PUB %s %d\r\n%s\r\n" % (names, len(payload), payload)

    def unit(self, body: bytes) -> tuple[bytes, int]:
        """The message that is published repeatedly, and the position of its guid's digits."""
        guid = (GUID_HEAD + GUID_DIGITS).decode()
        message = pb.PubMsg(
            clientID=self.client_id,
            guid=guid,
            subject=self.channel,
            data=body,
            connID=self.conn_id,
        )
        unit = self.line(f"{self.subjects.pubPrefix}.{self.channel}", message, self.inbox)
        return unit, unit.index(guid.encode()) + len(GUID_HEAD)

    def subscribe(self, max_in_flight: int) -> tuple[bytes, bytes, bytes]:
        """Subscribe to new messages; return an Ack up to its size, the Ack up to its sequence, and
        the request that ends the subscription."""
        request = pb.SubscriptionRequest(
            clientID=self.client_id,
            subject=self.channel,
            inbox=self.inbox,
            maxInFlight=max_in_flight,
            ackWaitInSecs=ACK_WAIT_SECONDS,
            startPosition=pb.NewOnly,
        )
        answer = self.ask(self.subjects.subRequests, request, pb.SubscriptionResponse)
        unsubscribe = pb.UnsubscribeRequest(
            clientID=self.client_id, subject=self.channel, inbox=answer.ackInbox
        )
        return (
            b"PUB %s " % answer.ackInbox.encode(),
            pb.Ack(subject=self.channel).SerializeToString(),
            self.line(self.subjects.unsubRequests, unsubscribe, self.answers),
        )

    def dialled(self) -> Dialled:
        """The connection and its unread bytes, for the generator."""
        return self.peer.sock, self.peer.unread

    def resume(self, unread: bytes) -> None:
        """Continue to use the connection after the generator, which may have read the first part
        of a heartbeat."""
        self.peer.unread = unread

    def close(self, *, end_client: bool) -> None:
        """Close the connection; with `end_client` send a CloseRequest first."""
        with self.peer.sock:
            if end_client:
                self.peer.sock.settimeout(CONNECT_SECONDS)
                request = pb.CloseRequest(clientID=self.client_id)
                self.ask(self.subjects.closeRequests, request, pb.CloseResponse)
