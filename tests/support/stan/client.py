"""NATS Streaming for tests: a server as a process, and a client with one blocking socket."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from collections import defaultdict, deque
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.clients.peer import PeerError, RawPeer
from support.servers.processes import (
    START_DEADLINE_S,
    TARGET_ORIGINAL,
    Address,
    ServerError,
    _Process,
)
from support.stan import wire

PROGRAM = "nats-streaming-server"
CLUSTER = "test-cluster"
_COUNT = itertools.count()


class StanServer:
    """A process, ours or the original, by the original's command line; new ports at each start."""

    def __init__(self, folder: Path, *flags: str) -> None:
        if TARGET_ORIGINAL and shutil.which(PROGRAM) is None:
            pytest.skip(f"{PROGRAM} is not on PATH")
        if not TARGET_ORIGINAL and find_spec("broker.cli.dropin.nats_streaming.command") is None:
            pytest.skip(f"this broker is not run as {PROGRAM}")
        folder.mkdir(parents=True, exist_ok=True)
        self.flags = flags
        self.process = _Process(folder / "log")
        self.nats = self.monitor = Address("127.0.0.1", 0)
        self.start()

    def start(self) -> None:
        """Start on free ports and wait until clients are served."""
        program = [PROGRAM] if TARGET_ORIGINAL else [sys.executable, "-m", "broker", PROGRAM]
        ports = ["-a", "127.0.0.1", "-p", "-1", "-m", "-1"]
        self.process.spawn([*program, *ports, *self.flags])
        try:
            self.await_log("Streaming Server is ready")
        except BaseException:
            self.kill()
            raise
        log = self.process.output()
        self.nats = _listening(log, "Listening for client connections on")
        self.monitor = _listening(log, "Starting http monitor on")

    def await_log(self, text: str) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while text not in self.process.output():
            self.process.step()
            if time.monotonic() > deadline:
                raise ServerError(f"no {text!r}\n{self.process.output()}")

    def kill(self) -> None:
        """End without warning."""
        self.process.end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """The exit code."""
        return self.process.end(number)


def _listening(log: str, words: str) -> Address:
    match = re.search(rf"{words} (\S+)", log)
    assert match is not None, log
    return Address.parse(match[1])


class Place(Protocol):
    """Any server with a NATS listener."""

    @property
    def nats(self) -> Address: ...


class Subscription:
    """What a client subscribed to; `error` is what the server had against it."""

    def __init__(
        self, client: StanClient, channel: str, inbox: str, answer: dict[str, Any]
    ) -> None:
        self.client = client
        self.channel = channel
        self.inbox = inbox
        self.ack_inbox: str = answer["ack_inbox"]
        self.error: str = answer["error"]

    def next(self, *, ack: bool = False) -> dict[str, Any]:
        """The next message."""
        message = wire.decode(wire.MESSAGE, self.client.take(self.inbox))
        if ack:
            self.ack(message["sequence"])
        return message

    def take(self, count: int, *, ack: bool = False) -> list[int]:
        """Sequences of the next messages."""
        return [self.next(ack=ack)["sequence"] for _ in range(count)]

    def waiting(self) -> list[int]:
        """Sequence numbers of received messages that the test has not read."""
        found = self.client.queues[self.inbox]
        return [wire.decode(wire.MESSAGE, data)["sequence"] for data in found]

    def ack(self, *sequences: int) -> None:
        for sequence in sequences:
            body = wire.encode(wire.ACK, subject=self.channel, sequence=sequence)
            self.client.pub(self.ack_inbox, body)

    def unsubscribe(self) -> str:
        """The error."""
        return self.client.leave("unsub_requests", self.channel, self.ack_inbox)

    def close(self) -> str:
        """The error."""
        return self.client.leave("sub_close_requests", self.channel, self.ack_inbox)


class StanClient:
    """Registered under its ID by default; answers heartbeats while it waits."""

    def __init__(
        self,
        server: Place,
        client_id: str = "",
        *,
        cluster: str = CLUSTER,
        prefix: str = "_STAN.discover",
        register: bool = True,
        **options: Any,
    ) -> None:
        """`options`: of CONNECT of the NATS server (user, pass)."""
        number = next(_COUNT)
        self.client_id = client_id or f"client{os.getpid()}_{number}"
        self.cluster = cluster
        self.prefix = prefix
        self.conn_id = f"conn{os.getpid()}_{number}".encode()
        self.home = f"_T.{os.getpid()}.{number}"
        self.hb_inbox = f"{self.home}.hb"
        self.answers = True  # heartbeats
        self.heartbeats = 0
        self.numbers = itertools.count()
        self.queues: dict[str, deque[bytes]] = defaultdict(deque)
        self.order: list[str] = []  # of what came: the subjects
        self.headers = b""  # of what came last
        self.pongs = 0
        self.peer = RawPeer(server.nats)
        self.peer.read_line()
        asked = {"verbose": False, "headers": True, "no_responders": True, **options}
        self.peer.send(f"CONNECT {json.dumps(asked)}\r\nSUB {self.home}.> 1\r\n".encode())
        self.flush()
        self.paths: dict[str, Any] = {
            "pub_prefix": f"_STAN.pub.{cluster}",
            "sub_requests": f"_STAN.sub.{cluster}",
            "unsub_requests": f"_STAN.unsub.{cluster}",
            "close_requests": f"_STAN.close.{cluster}",
            "sub_close_requests": f"_STAN.subclose.{cluster}",
            "ping_requests": f"{prefix}.{cluster}.pings",
        }
        if register:
            found = self.register()
            assert not found["error"], found
            self.paths |= found

    def __enter__(self) -> StanClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.close()

    # --- NATS

    def pub(self, subject: str, data: bytes, reply: str = "") -> None:
        head = f"PUB {subject} {reply} {len(data)}\r\n".encode()
        self.peer.send(head + data + b"\r\n")

    def flush(self) -> None:
        """All that the NATS server had for us has come."""
        self.peer.send(b"PING\r\n")
        wanted = self.pongs + 1
        while self.pongs < wanted:
            self._read()

    def wait(self) -> None:
        """Until something has come."""
        self._read()

    def inbox(self) -> str:
        return f"{self.home}.{next(self.numbers)}"

    def take(self, subject: str) -> bytes:
        """The next message to this inbox."""
        while not self.queues[subject]:
            self._read(subject)
        return self.queues[subject].popleft()

    def request(self, subject: str, data: bytes) -> bytes:
        inbox = self.inbox()
        self.pub(subject, data, inbox)
        return self.take(inbox)

    def _read(self, wanted: str = "") -> None:
        try:
            line = self.peer.read_line()
        except PeerError as error:
            raise PeerError(f"{self.client_id} waits for {wanted}: {error}") from None
        words = line.decode().split()
        if words[0] == "PONG":
            self.pongs += 1
        elif words[0] == "PING":
            self.peer.send(b"PONG\r\n")
        else:
            assert words[0] in ("MSG", "HMSG"), line
            size = int(words[-1])
            body = self.peer.read_exact(size + 2)[:size]
            self.headers = b""
            if words[0] == "HMSG":
                self.headers, body = body[: int(words[-2])], body[int(words[-2]) :]
            reply = words[3] if len(words) == (6 if words[0] == "HMSG" else 5) else ""
            self._got(words[1], reply, body)

    def _got(self, subject: str, reply: str, body: bytes) -> None:
        self.order.append(subject)
        if subject == self.hb_inbox and self.answers:
            self.heartbeats += 1
            self.pub(reply, b"")
        else:
            self.queues[subject].append(body)

    # --- streaming

    def register(self, **changes: Any) -> dict[str, Any]:
        """Ask to be a client; `changes`: of the request."""
        fields: dict[str, Any] = {
            "client_id": self.client_id,
            "heartbeat_inbox": self.hb_inbox,
            "protocol": 1,
            "conn_id": self.conn_id,
            "ping_interval": 5,
            "ping_max_out": 3,
        }
        body = wire.encode(wire.CONNECT, **(fields | changes))
        return wire.decode(wire.CONNECTED, self.request(f"{self.prefix}.{self.cluster}", body))

    def send(self, channel: str, data: bytes, **changes: Any) -> str:
        """Publish without waiting; the inbox that the acknowledgement comes to."""
        inbox = self.inbox()
        fields = {
            "client_id": self.client_id,
            "guid": inbox,
            "subject": channel,
            "data": data,
            "conn_id": self.conn_id,
        }
        where = f"{self.paths['pub_prefix']}.{changes.pop('to', channel)}"
        self.pub(where, wire.encode(wire.PUB, **(fields | changes)), inbox)
        return inbox

    def acked(self, inbox: str) -> dict[str, Any]:
        return wire.decode(wire.PUB_ACK, self.take(inbox))

    def publish(self, channel: str, *bodies: bytes, **changes: Any) -> str:
        """Publish, one after the other; the last error."""
        error = ""
        for data in bodies:
            error = self.acked(self.send(channel, data, **changes))["error"]
        return error

    def fill(self, channel: str, count: int) -> None:
        """Publish that many messages."""
        for inbox in [self.send(channel, b"%d" % n) for n in range(1, count + 1)]:
            assert not self.acked(inbox)["error"]

    def subscribe(self, channel: str, **changes: Any) -> Subscription:
        inbox = changes.pop("inbox", None) or self.inbox()
        fields: dict[str, Any] = {
            "client_id": self.client_id,
            "subject": channel,
            "inbox": inbox,
            "max_in_flight": 1024,
            "ack_wait": 30,
        }
        body = wire.encode(wire.SUBSCRIBE, **(fields | changes))
        answer = wire.decode(wire.SUBSCRIBED, self.request(self.paths["sub_requests"], body))
        return Subscription(self, channel, inbox, answer)

    def leave(self, path: str, channel: str, inbox: str, **changes: Any) -> str:
        """Unsubscribe or close a subscription; the error, which is all that may be said."""
        fields = {"client_id": self.client_id, "subject": channel, "inbox": inbox} | changes
        answer = self.request(self.paths[path], wire.encode(wire.UNSUBSCRIBE, **fields))
        return str(wire.decode(wire.SUBSCRIBED, answer)["error"])

    def ping(self, **changes: Any) -> bytes:
        """What the server answers to a ping."""
        fields = {"conn_id": self.conn_id} | changes
        return self.request(self.paths["ping_requests"], wire.encode(wire.PING, **fields))

    def close(self, **changes: Any) -> str:
        """Close the connection of the client id; the error."""
        fields = {"client_id": self.client_id} | changes
        answer = self.request(self.paths["close_requests"], wire.encode(wire.CLOSE, **fields))
        return str(wire.decode(wire.CLOSED, answer)["error"])

    def quiet(self, *subscriptions: Subscription) -> None:
        """Nothing is on its way to these: what comes after it has come."""
        self.publish("quiet.barrier", b"")
        self.flush()
        for one in subscriptions:
            assert one.waiting() == [], one.channel
