"""Consumers of JetStream on an engine whose clock the test moves; clients are local subscribers."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

from broker.engine.stream.cursor import StreamCursor, StreamCursors
from broker.engine.stream.store import StreamLimits, open_store
from broker.protocols.jetstream.config import JetStreamConfig
from broker.protocols.jetstream.consumers import checks
from broker.protocols.jetstream.consumers.consumer import Consumer
from broker.protocols.jetstream.consumers.outlet import Outlet
from broker.protocols.jetstream.consumers.pull import PullConsumer
from broker.protocols.jetstream.consumers.push import PushConsumer
from broker.protocols.jetstream.structs import AccountLimits, ConsumerConfig, StreamConfig
from broker.protocols.nats.accounts.account import Account, CurrentPublisher, Message
from support.engine import SECOND, Rig
from support.native.stores import publish


class Registry:
    """The registry of consumers of an account, as consumers use it. It records their reports."""

    api_heads = (b"$JS.API.",)
    largest = 1  # the bytes of the largest message that is allowed

    def __init__(self, account: Account) -> None:
        self.account = account
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.deleted: list[str] = []
        self.ids = map("pin{:019d}".format, itertools.count(1))

    def next_seq(self, stream: Any) -> int:
        return int(stream.store.last_seq) + 1

    def largest_message(self, _stream: Any) -> int:
        return self.largest

    def new_id(self) -> str:
        return next(self.ids)

    def delete_inactive(self, consumer: Consumer) -> None:
        self.deleted.append(consumer.name)
        consumer.close("409 Consumer Deleted")

    def report(self, _consumer: Consumer, kind: str, details: Any) -> None:
        if kind == "status":
            reply, line = details
            self.account.publish(reply, b"", headers=b"NATS/1.0 " + line + b"\r\n\r\n")
        else:
            self.reports.append((kind, details))


class Bench:
    """A stream `S`, whose messages have the subject of its log, and its consumers."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.account = Account("$G", rig.turn, CurrentPublisher(), rig.router)
        self.store = open_store(rig.engine, "js.$G/S", StreamLimits(), sync="none")
        self.cursors = StreamCursors(self.store)
        self.stream = SimpleNamespace(name="S", store=self.store, config=StreamConfig(name="S"))
        self.registry = Registry(self.account)
        self.outlet = Outlet(self.account)
        self.boxes: dict[str, list[Message]] = {}

    def consumer(self, name: str = "C", *, start: int = 1, **fields: Any) -> Any:
        config = ConsumerConfig(name=name, durable_name=name, **fields)
        limits = AccountLimits()
        server = JetStreamConfig()
        checks.set_defaults(config, self.stream.config, limits, server, pedantic=False)
        checks.check(config, self.stream.config, limits, server)
        cursor = StreamCursor(
            self.cursors,
            name,
            start,
            ack_policy="all" if config.ack_policy == "flow_control" else config.ack_policy,
            ack_wait_ns=config.ack_wait,
            backoff_ns=config.backoff,
            max_deliver=max(0, config.max_deliver),
            max_ack_pending=max(0, config.max_ack_pending),
        )
        kind = PushConsumer if checks.is_push(config) else PullConsumer
        made = kind(self.registry, self.outlet, self.stream, cursor, config, self.rig.turn.wall_ns)
        made.start()
        self.rig.settle()
        return made

    def publish(self, *bodies: bytes, headers: bytes = b"") -> None:
        for body in bodies:
            publish(self.store, b"S", body, headers=headers)
        self.rig.settle()

    def inbox(self, name: str, queue: bytes = b"") -> Any:
        """Subscribe to this subject; `got(name)` returns its messages."""
        box = self.boxes.setdefault(name, [])
        return self.account.listen(name.encode(), box.append, queue)

    def ask(self, reply: str, consumer: str = "C", *, settle: bool = True, **fields: Any) -> None:
        """Send a pull request; times are seconds."""
        for key in ("expires", "idle_heartbeat"):
            if key in fields:
                fields[key] = int(fields[key] * SECOND)
        self.send(reply, json.dumps(fields).encode() if fields else b"", consumer, settle=settle)

    def send(self, reply: str, body: bytes, consumer: str = "C", *, settle: bool = True) -> int:
        taken = self.account.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.S.{consumer}".encode(), body, reply.encode()
        )
        if settle:
            self.rig.settle()
        return taken

    def ack(self, message: Message, body: bytes = b"+ACK", reply: str = "") -> int:
        taken = self.account.publish(message.reply, body, reply.encode())
        self.rig.settle()
        return taken

    def got(self, name: str) -> list[str]:
        """The messages received since the last call: statuses, or bodies."""
        box = self.boxes[name]
        found = [shown(message) for message in box]
        box.clear()
        return found

    def raw(self, name: str) -> list[Message]:
        """The messages received since the last call."""
        box = self.boxes[name]
        found = list(box)
        box.clear()
        return found


def shown(message: Message) -> str:
    """A status with its further headers, or the body of a message."""
    if message.headers.startswith(b"NATS/1.0 "):
        lines = message.headers.decode().strip().split("\r\n")
        return " | ".join([lines[0].removeprefix("NATS/1.0 "), *lines[1:]])
    return message.data.decode()
