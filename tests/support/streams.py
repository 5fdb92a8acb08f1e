"""Streams in an engine whose clock the test moves, and the answers to publishers."""

from __future__ import annotations

import json
from typing import Any

from broker.engine.stream.store import StreamLimits, open_store
from broker.protocols.jetstream.publish.stream import Stream
from broker.protocols.jetstream.structs import MsgGetRequest, StreamConfig
from broker.protocols.nats.accounts.account import Account, CurrentPublisher, Message
from support.engine import Rig

DUPLICATE_WINDOW = 120 * 10**9


class StreamCase:
    """One account, its streams, and the answers that its clients received."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.account = Account("$G", rig.turn, CurrentPublisher(), rig.router)
        self.answers: list[tuple[str, bytes]] = []
        self.heard: list[Message] = []
        self.count = 0
        self.streams: list[Stream] = []
        self.account.listen(b"reply.*", self.answered)

    def answered(self, message: Message) -> None:
        assert message.headers == b""
        self.answers.append((message.subject.decode(), message.data))

    def hear(self, subject: str) -> None:
        """Collect the messages on this subject in `heard`."""
        self.account.listen(subject.encode(), self.heard.append)

    def make(
        self,
        limits: dict[str, Any] | None = None,
        *,
        name: str = "S",
        domain: str = "",
        **more: Any,
    ) -> Stream:
        config = StreamConfig(**{"name": name, "subjects": ["s.>"], "max_msg_size": -1, **more})
        store = open_store(
            self.rig.engine,
            f"js.$G/{name}",
            StreamLimits(**{"duplicate_window_ns": DUPLICATE_WINDOW, **(limits or {})}),
            protocol="jetstream",
            sync=self.rig.sync,
        )
        stream = Stream(self.account, store, config, 0, domain)
        stream.start()
        self.streams.append(stream)  # a router only borrows its sinks
        return stream

    def send(self, subject: str, data: bytes = b"", reply: str = "", **headers: str) -> int:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        block = f"NATS/1.0\r\n{lines}\r\n".encode() if headers else b""
        return self.account.publish(subject.encode(), data, reply.encode(), block)

    def ask(self, subject: str, data: bytes = b"x", **headers: str) -> bytes:
        """Publish a message, and return the answer."""
        self.count += 1
        reply = f"reply.{self.count}"
        self.send(subject, data, reply, **headers)
        self.rig.settle()
        found = [answer for to, answer in self.answers if to == reply]
        assert len(found) == 1, found
        return found[0]

    def error(self, subject: str, data: bytes = b"x", **headers: str) -> tuple[int, str]:
        """Publish a message that is refused. Returns err_code and description of the error."""
        answer = json.loads(self.ask(subject, data, **headers))
        assert (answer["stream"], answer["seq"]) == ("S", 0)
        return answer["error"]["err_code"], answer["error"]["description"]


def get(stream: Stream, **request: Any) -> Any:
    """(subject, seq, headers, data) of a stored message; None: there is none."""
    found = stream.lookup.get(MsgGetRequest(**request))
    return found and (found.subject, found.seq, found.hdrs, found.data)


def ack(seq: int) -> bytes:
    return b'{"stream":"S","seq":%d}' % seq
