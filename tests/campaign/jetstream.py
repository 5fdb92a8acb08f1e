"""JetStream in the mixed load: a stream, a consumer whose acks are confirmed, and their ledger.

Whatever happens to the broker: an acknowledged message is there, under the sequence of its PubAck;
nothing is there twice; a message whose ack was confirmed is not delivered again; and what an
answered purge removed does not come back.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from campaign.ledgers import Finding, body_of, number_of, some
from campaign.links import NatsLink

STREAM_NAME, CONSUMER_NAME, SUBJECT = "CAMPAIGN", "reader", "campaign.js"
NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM_NAME}.{CONSUMER_NAME}"
FETCHED = b"2"  # the subscription for messages: they come under the subject of the stream
BATCH = 50
FETCH_S = 1.0
SOON_S = 20.0
POSITIONS = ("stream", "consumer", "count", "seq", "delivery", "time", "pending")


class JetStreamLink(NatsLink):
    """A client whose requests are answered on subjects of its own."""

    number = 0
    no_responders = False  # while a broker stops, its status would look like an answer
    gone = False

    def begin(self) -> None:
        self.send(b"SUB _INBOX.js.> 1\r\nSUB _INBOX.fetched.%d %s\r\n" % (id(self), FETCHED))

    def end(self) -> None:
        self.gone = True
        super().end()

    def check(self) -> None:
        """ConnectionResetError: nothing will be answered any more."""
        if self.gone:
            raise ConnectionResetError("closed")

    def ask(self, subject: str, data: bytes = b"") -> asyncio.Future[bytes]:
        """The body of the answer."""
        self.check()
        JetStreamLink.number += 1
        reply = f"_INBOX.js.{JetStreamLink.number}"
        coming: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(subject: bytes | None, _reply: bytes, data: bytes) -> None:
            if coming.done():
                return
            self.handlers.pop(reply, None)
            if subject is None:
                coming.set_exception(ConnectionResetError("closed"))
                coming.exception()  # it may be awaited by nobody
            else:
                coming.set_result(data)

        self.handlers[reply] = take
        self.publish(subject, data, reply)
        return coming

    async def api(self, verb: str, body: object = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        answer: dict[str, Any] = json.loads(await self.ask(f"$JS.API.{verb}", data))
        return answer


async def soon(coming: asyncio.Future[Any], problem: str) -> None:
    try:
        await asyncio.wait_for(coming, SOON_S)
    except TimeoutError:
        raise Finding(f"{STREAM_NAME}: {problem}") from None


class JetStreamLoad:
    """Its clients and their ledger."""

    def __init__(
        self, rng: random.Random, pace: Any, refused: Callable[[str, object], None]
    ) -> None:
        """`pace`: a load.Pace; `refused`: records a refused publish."""
        self.rng, self.pace, self.refused = rng, pace, refused
        self.sent = 0
        self.acked: dict[int, int] = {}  # number of a message -> its sequence
        self.numbers: dict[int, int] = {}  # sequence -> number
        self.confirmed: dict[int, str] = {}  # by sequence: where its ack was confirmed
        self.runs = 0
        self.got: set[int] = set()
        self.floor = 0  # what an answered purge has removed
        self.answered = self.acks = 0  # in all

    def go_on(self, before: JetStreamLoad) -> None:
        """With a copy of another ledger."""
        self.sent, self.floor = before.sent, before.floor
        self.answered, self.acks = before.answered, before.acks
        self.acked, self.numbers = dict(before.acked), dict(before.numbers)
        self.confirmed, self.got = dict(before.confirmed), set(before.got)

    async def link(self, ports: dict[str, Any]) -> JetStreamLink:
        link = await JetStreamLink.to(ports["nats"])
        link.begin()
        return link

    async def prepare(self, ports: dict[str, Any]) -> None:
        async with await self.link(ports) as link:
            stream = {"name": STREAM_NAME, "subjects": [SUBJECT]}
            consumer = {
                "durable_name": CONSUMER_NAME,
                "ack_policy": "explicit",
                "ack_wait": 2_000_000_000,
                "max_ack_pending": 20_000,
            }
            requests = (
                (f"STREAM.CREATE.{STREAM_NAME}", stream),
                (
                    f"CONSUMER.CREATE.{STREAM_NAME}.{CONSUMER_NAME}",
                    {"stream_name": STREAM_NAME, "config": consumer},
                ),
            )
            for verb, body in requests:
                answer = await link.api(verb, body)
                assert "error" not in answer, answer

    def jobs(self, ports: dict[str, Any]) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [lambda: self.publish(ports), lambda: self.read(ports)]

    async def publish(self, ports: dict[str, Any]) -> None:
        """Publish, several messages unanswered."""
        waiting = deque[tuple[int, asyncio.Future[bytes]]]()
        async with await self.link(ports) as link:
            while True:
                while len(waiting) < self.pace.window:
                    waiting.append((self.sent, link.ask(SUBJECT, body_of(self.sent))))
                    self.sent += 1
                await asyncio.sleep(self.rng.random() * self.pace.pause_s)
                number, coming = waiting.popleft()
                answer = json.loads(await coming)
                if "error" in answer:
                    self.refused("publishing to a stream", answer["error"])
                else:
                    self.seen(answer["seq"], number)
                    self.acked[number] = answer["seq"]
                    self.answered += 1

    def seen(self, seq: int, number: int) -> None:
        """A sequence is always the same message, and none that was purged."""
        if seq <= self.floor:
            raise Finding(f"{STREAM_NAME}: sequence {seq}, but all up to {self.floor} were purged")
        if number >= self.sent:
            raise Finding(f"{STREAM_NAME}: message {number} was never sent (sequence {seq})")
        if self.acked.get(number, seq) != seq:
            raise Finding(f"{STREAM_NAME}: message {number} has {self.acked[number]} and {seq}")
        if number in self.acked:
            self.numbers[seq] = number
        if self.numbers.get(seq, number) != number:
            raise Finding(f"{STREAM_NAME}: sequence {seq} is {number}, was {self.numbers[seq]}")

    async def fetch(self, link: JetStreamLink) -> list[tuple[int, str]]:
        """(sequence, where to ack) of the next messages; none = there are no more for now."""
        found: list[tuple[int, str]] = []
        link.check()
        inbox, sid = f"_INBOX.fetched.{id(link)}", FETCHED.decode()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take(subject: bytes | None, reply: bytes, data: bytes) -> None:
            if ended.done():
                return
            try:
                if subject is None:
                    ended.set_exception(ConnectionResetError("closed"))
                elif not reply.startswith(b"$JS.ACK."):
                    ended.set_result(None)  # a status: the request is over
                else:
                    place = dict(zip(POSITIONS, reply.decode().split(".")[2:], strict=True))
                    seq = int(place["seq"])
                    self.seen(seq, number_of(data))
                    if seq in self.confirmed:
                        text = f"{seq} again ({reply.decode()}), run {self.runs}"
                        raise Finding(f"{STREAM_NAME}: {text}; acked: {self.confirmed[seq]}")
                    self.got.add(seq)
                    found.append((seq, reply.decode()))
                    if len(found) == BATCH:
                        ended.set_result(None)
            except Finding as problem:
                ended.set_exception(problem)

        link.handlers[sid] = take
        request = {"batch": BATCH, "expires": int(FETCH_S * 1e9)}
        link.publish(NEXT, json.dumps(request).encode(), inbox)
        try:
            await soon(ended, "a request for messages does not end")
        finally:
            link.handlers.pop(sid, None)
        return found

    async def read(self, ports: dict[str, Any]) -> None:
        """Ack most messages, and have that confirmed."""
        self.runs += 1
        async with await self.link(ports) as link:
            while True:
                messages = await self.fetch(link)
                await self.ack(link, [m for m in messages if m[0] % 7])

    async def ack(self, link: JetStreamLink, messages: list[tuple[int, str]]) -> None:
        answers = [link.ask(reply, b"+ACK") for _, reply in messages]
        for (seq, reply), answer in zip(messages, answers, strict=True):
            await soon(answer, f"the ack of {seq} is not confirmed")
            self.confirmed[seq] = f"{reply}, run {self.runs}"
            self.acks += 1

    async def drain(self, link: JetStreamLink) -> None:
        """Ack everything, what was delivered to clients that are gone too."""
        least, deadline = 1 << 62, time.monotonic() + SOON_S
        while True:
            info = await link.api(f"CONSUMER.INFO.{STREAM_NAME}.{CONSUMER_NAME}")
            left = info["num_pending"] + info["num_ack_pending"]
            if not left:
                return
            if left < least:
                least, deadline = left, time.monotonic() + SOON_S
            elif time.monotonic() > deadline:
                raise Finding(f"{STREAM_NAME}: {left} messages are not delivered any more")
            await self.ack(link, await self.fetch(link))

    async def audit(self, ports: dict[str, Any]) -> None:
        """Read the whole stream, then the rest for the consumer; then purge it."""
        async with await self.link(ports) as link:
            state = (await link.api(f"STREAM.INFO.{STREAM_NAME}"))["state"]
            there: dict[int, int] = {}
            for seq in range(state["first_seq"], state["last_seq"] + 1):
                answer = await link.api(f"STREAM.MSG.GET.{STREAM_NAME}", {"seq": seq})
                if "message" in answer:
                    number = number_of(base64.b64decode(answer["message"]["data"]))
                    self.seen(seq, number)
                    if number in there:
                        raise Finding(f"{STREAM_NAME}: {number} is {there[number]} and {seq}")
                    there[number] = seq
            if lost := set(self.acked.items()) - set(there.items()):
                text = some({number for number, _ in lost})
                raise Finding(f"{STREAM_NAME}: {len(lost)} acknowledged messages lost: {text}")
            await self.drain(link)
            if missing := set(there.values()) - self.got - self.confirmed.keys():
                raise Finding(f"{STREAM_NAME}: the consumer never got {some(missing)}")
            answer = await link.api(f"STREAM.PURGE.{STREAM_NAME}")
            if not answer.get("success"):
                raise Finding(f"{STREAM_NAME}: a purge was refused: {answer}")
            self.floor = state["last_seq"]
            self.acked.clear()
            self.numbers.clear()
            self.got.clear()
            self.confirmed.clear()
