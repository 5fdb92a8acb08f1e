"""A fake NATS Streaming server for the load generator: one channel, and optional wrong answers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from google.protobuf.message import Message

from broker.protocols.stan import stan_pb2 as pb

Writer = asyncio.StreamWriter
ABSENT_ASKS = 3  # answered with no responders
HEARTBEAT_EVERY = 50  # messages
REFUSE_EVERY = 10
REPEAT_EVERY = 10


@dataclass
class Subscription:
    inbox: str
    max_in_flight: int
    first: int  # sequence
    sent: int
    acked: set[int] = field(default_factory=set)
    over: bool = False


class FakeStan:
    """Delivers, waits for Acks, sends heartbeats, and splits its output."""

    def __init__(self, breakage: str = "", answer_in: int = 1, deliver_in: int = 1) -> None:
        self.breakage = breakage
        self.answer_in = answer_in  # PubAcks are held until there are so many
        self.deliver_in = deliver_in  # so are messages, and until all heartbeats are answered
        self.absent = ABSENT_ASKS if breakage == "absent" else 0
        self.subs: dict[bytes, tuple[bytes, Writer]] = {}  # subject -> sid, connection
        self.heartbeats: dict[str, str] = {}  # client id -> inbox
        self.asked = self.answered = 0  # heartbeats
        self.subscriptions: list[Subscription] = []
        self.published: list[pb.PubMsg] = []
        self.held: list[tuple[bytes, pb.PubAck]] = []
        self.ended = 0  # subscriptions that are over, everything acked
        self.closed: list[str] = []  # client ids
        self.half = ""  # the inbox that gets halves of heartbeats
        self.owed = b""  # the other half
        self.sending = asyncio.Lock()

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        writer.write(b'INFO {"server_id":"fake","headers":true} \r\n')
        while line := await reader.readline():
            verb, *words = line.split()
            if verb == b"SUB":
                self.subs[words[0]] = words[1], writer
            elif verb == b"PUB":
                body = await reader.readexactly(int(words[-1]) + 2)
                assert body.endswith(b"\r\n"), "something stood inside a message"
                reply = words[1] if len(words) == 3 else b""
                await self.take(words[0].decode(), reply, body[:-2])
            else:
                assert verb in {b"CONNECT", b"PONG"}, line

    async def send(self, subject: bytes, message: Message | bytes, reply: bytes = b"") -> None:
        body = message if isinstance(message, bytes) else message.SerializeToString()
        sid, writer = self.subs[subject]
        words = [b"MSG", subject, sid, *([reply] if reply else []), b"%d" % len(body)]
        data = b" ".join(words) + b"\r\n" + body + b"\r\n"
        at = random.Random(len(data)).randrange(len(data))
        if self.half:
            data, at = self.with_half_a_heartbeat(data), 0
        async with self.sending:  # the pieces stay together
            writer.write(data[:at])
            await writer.drain()
            writer.write(data[at:])
            await writer.drain()

    def with_half_a_heartbeat(self, data: bytes) -> bytes:
        """What one client is sent at once: an answer between halves of two heartbeats."""
        inbox = self.half.encode()
        beat = b"MSG %s %s beat.1 0\r\n\r\n" % (inbox, self.subs[inbox][0])
        data = self.owed + data + beat[:-1]
        self.owed = beat[-1:]
        self.asked += 1
        return data

    async def take(self, subject: str, reply: bytes, body: bytes) -> None:
        kind, _, rest = subject.partition(".")
        if kind == "beat":
            assert body == b""
            self.answered += 1
            for number in range(len(self.subscriptions) if self.answered == self.asked else 0):
                await self.deliver(number)
        elif kind == "ack":
            await self.take_ack(int(rest), pb.Ack.FromString(body))
        elif kind == "pub":
            await self.take_pub(rest, reply, pb.PubMsg.FromString(body))
        elif self.absent:
            self.absent -= 1
            sid, writer = self.subs[reply]
            head = b"NATS/1.0 503\r\n\r\n"
            writer.write(b"HMSG %s %s %d %d\r\n%s\r\n" % (reply, sid, len(head), len(head), head))
        elif subject == "_STAN.discover.test-cluster":
            await self.send(reply, self.connect(pb.ConnectRequest.FromString(body)))
        elif kind == "sub":
            await self.send(reply, self.subscribe(pb.SubscriptionRequest.FromString(body)))
        elif kind == "unsub":
            ended = self.subscriptions[int(pb.UnsubscribeRequest.FromString(body).inbox[4:])]
            assert ended.acked == set(range(ended.first, ended.sent + 1))
            ended.over = True
            self.ended += 1
            await self.send(reply, b"")
        else:
            assert kind == "close", subject
            self.closed.append(pb.CloseRequest.FromString(body).clientID)
            del self.heartbeats[self.closed[-1]]
            await self.send(reply, b"")

    def connect(self, request: pb.ConnectRequest) -> pb.ConnectResponse:
        if self.breakage == "registered":
            return pb.ConnectResponse(error="stan: clientID already registered")
        assert request.clientID not in self.heartbeats
        self.heartbeats[request.clientID] = request.heartbeatInbox
        if self.breakage == "half":
            self.half = request.heartbeatInbox
        return pb.ConnectResponse(
            pubPrefix="pub", subRequests="sub", unsubRequests="unsub", closeRequests="close"
        )

    def subscribe(self, request: pb.SubscriptionRequest) -> pb.SubscriptionResponse:
        last = len(self.published)
        new = Subscription(request.inbox, request.maxInFlight, first=last + 1, sent=last)
        self.subscriptions.append(new)
        return pb.SubscriptionResponse(ackInbox=f"ack.{len(self.subscriptions) - 1}")

    async def take_pub(self, channel: str, reply: bytes, message: pb.PubMsg) -> None:
        assert message.subject == channel
        assert message.clientID in self.heartbeats
        self.published.append(message)
        count = len(self.published)
        ack = pb.PubAck(guid=message.guid)
        if self.breakage == "stranger":
            ack.guid = message.guid[:-1] + "f"
        elif self.breakage == "full" or (self.breakage == "some" and count % REFUSE_EVERY == 0):
            ack.error = "too many channels"
            self.published.pop()
            count -= 1
        self.held.append((reply, ack))
        assert len(self.held) <= self.answer_in
        for number, sub in enumerate(self.subscriptions):
            assert sub.over or self.deliver_in == 1 or count - sub.sent <= self.deliver_in
            if self.deliver_in == 1:
                await self.deliver(number)
        if len(self.held) == self.answer_in:
            held, self.held = self.held, []
            for inbox, answer in held:
                await self.send(inbox, answer)
        if count % (HEARTBEAT_EVERY if self.deliver_in == 1 else self.deliver_in) == 0:
            for inbox_ in self.heartbeats.values():
                self.asked += 1
                await self.send(inbox_.encode(), b"", b"beat.1")

    async def deliver(self, number: int) -> None:
        sub = self.subscriptions[number]
        while not sub.over and sub.sent < len(self.published):
            if sub.sent + 1 - sub.first - len(sub.acked) >= sub.max_in_flight:
                break
            sub.sent += 1
            message = pb.MsgProto(
                sequence=sub.sent, subject="any", data=self.published[sub.sent - 1].data
            )
            if self.breakage == "order" and sub.sent > 5:
                message.sequence = 2
            await self.send(sub.inbox.encode(), message)
            if self.breakage == "repeat" and sub.sent % REPEAT_EVERY == 0:
                message.redelivered = True
                await self.send(sub.inbox.encode(), message)

    async def take_ack(self, number: int, ack: pb.Ack) -> None:
        sub = self.subscriptions[number]
        assert sub.first <= ack.sequence <= sub.sent
        assert ack.subject == self.published[ack.sequence - 1].subject
        sub.acked.add(ack.sequence)
        if self.deliver_in == 1:
            await self.deliver(number)
