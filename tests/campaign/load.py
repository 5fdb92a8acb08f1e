"""A mixed load on one broker: every client keeps a ledger of what was answered.

The clients run until the broker is gone (or `stop` is set) and then end without an error; a
violation is a `Finding`. The same ledgers continue with the next run, after a restart.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from support.servers.processes import Address
from support.stan import wire

from campaign import links
from campaign.jetstream import JetStreamLoad
from campaign.ledgers import (
    END,
    ChannelLedger,
    CommitLedger,
    Finding,
    StreamLedger,
    TopicLedger,
    body_of,
    some,
)
from campaign.links import GONE, BulkLink, NatsLink, NsqLink, RefusedError, StanLink
from campaign.logfiles import LogFiles

WORK, LATE, CROSS, STREAM, MARKS = "work", "late.read", "cross.over", "stream.one", "marks"
COMMITS = ("commit.a", "commit.b")
CHANNEL, SECOND = "c", "second"
MARKS_KEPT = 50
PUBLISHER, READER, AUDITOR = "publisher", "reader", "auditor"
DRAIN_S = 60.0
AUDIT_IN_FLIGHT = 2048  # few enough for a buffer of the broker
CANCEL_S = 0.5
POLL_S = 0.02

Ports = dict[str, Address]


@dataclass(frozen=True)
class Pace:
    """How much load the clients make."""

    window: int = 40  # answers outstanding
    pause_s: float = 0.002  # after each command
    mark_every: int = 20
    rdy: int = 50
    rows_max: int = 60  # of one block of a commit
    ignored_max: int = 8  # messages that a consumer keeps


def config_text(sync: str, segment_size: str, more: str = "") -> str:
    """What a broker under this load needs; the topic of marks is kept short."""
    streams = "always" if sync == "none" else sync
    return (
        f'[jetstream]\nsync = "{streams}"\n[stan]\nenabled = true\n'
        f'[storage]\nsync = "{sync}"\nsegment_size = "{segment_size}"\n'
        f'[[storage.topic]]\npattern = "{MARKS}"\nmax_msgs = {MARKS_KEPT}\n'
        f'[[storage.topic]]\npattern = "{LATE}"\nsync = "always"\n{more}'
    )


class Load:
    """All clients of one data folder."""

    def __init__(self, rng: random.Random, pace: Pace, *, tolerant: bool = False) -> None:
        """`tolerant`: publishes may be refused, as on a disk that fails."""
        self.rng, self.pace, self.tolerant = rng, pace, tolerant
        self.topics = {name: TopicLedger(name) for name in (WORK, LATE, CROSS, STREAM, *COMMITS)}
        for name, channel in (
            (WORK, CHANNEL),
            (LATE, CHANNEL),
            (LATE, SECOND),
            (CROSS, CHANNEL),
            (COMMITS[1], CHANNEL),
        ):
            self.topics[name].channel(channel)
        self.stream = StreamLedger(self.topics[STREAM])
        self.jetstream = JetStreamLoad(rng, pace, self.refused)
        self.commits = CommitLedger([self.topics[name] for name in COMMITS])
        self.attempt = 0
        self.retry: set[int] = set()
        self.stop = asyncio.Event()
        self.files: dict[str, LogFiles] = {}
        self.present: dict[str, set[int]] = {name: set() for name in self.topics}
        self.published = asyncio.Event()
        self.refusals: list[str] = []
        self.audits = 0
        self.doing = ""  # shown if it takes long

    # --- counts

    @property
    def acked(self) -> int:
        """Publishes that were answered."""
        return sum(topic.acked for topic in self.topics.values()) + self.jetstream.answered

    @property
    def finished(self) -> int:
        """FINs and acks that a later answer confirmed."""
        channels = sum(c.finished for t in self.topics.values() for c in t.channels.values())
        return channels + self.stream.taken + len(self.stream.fenced) + self.jetstream.acks

    @property
    def delivered(self) -> int:
        """Deliveries."""
        return sum(c.delivered for t in self.topics.values() for c in t.channels.values())

    # --- running

    async def prepare(self, ports: Ports) -> None:
        """Make the topics and channels, before anything is published."""
        async with aiohttp.ClientSession() as session:
            for name, topic in self.topics.items():
                if name == STREAM:
                    continue
                base = f"http://{ports['nsq_http']}"
                pages = [f"{base}/topic/create?topic={name}"]
                pages += [f"{base}/channel/create?topic={name}&channel={c}" for c in topic.channels]
                for page in pages:
                    async with session.post(page) as answer:
                        assert answer.status == 200, await answer.text()
        await self.jetstream.prepare(ports)

    def jobs(self, ports: Ports) -> list[Coroutine[Any, Any, None]]:
        """What the clients do."""
        return [
            self.publish(ports, WORK),
            self.publish(ports, LATE),
            self.cross(ports),
            self.stan_publish(ports),
            self.stan_read(ports),
            self.commit(ports),
            *(job() for job in self.jetstream.jobs(ports)),
            *(self.consume(ports, name, CHANNEL) for name in (WORK, LATE, CROSS, COMMITS[1])),
        ]

    async def run(self, ports: Ports) -> None:
        """Until the broker is gone or `stop` is set."""
        self.doing = "working"
        tasks = [asyncio.create_task(self.until_gone(job)) for job in self.jobs(ports)]
        stopping = asyncio.create_task(self.stop.wait())
        try:
            waiting = {*tasks}
            while waiting and not stopping.done():
                done, waiting = await asyncio.wait(
                    {*waiting, stopping}, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.discard(stopping)
                for task in done - {stopping}:
                    task.result()
        finally:
            await ended([*tasks, stopping])

    async def until_gone(self, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except GONE:
            return

    def refused(self, what: str, problem: object) -> None:
        """Record a refused publish."""
        if not self.tolerant:
            raise Finding(f"{what} was refused: {problem}")
        if len(self.refusals) < 1000:
            self.refusals.append(f"{what}: {problem}")

    # --- NSQ

    async def publish(self, ports: Ports, name: str) -> None:
        """PUB, MPUB and DPUB, several of them unanswered."""
        topic, rng, waiting = self.topics[name], self.rng, deque[range]()
        async with await NsqLink.to(ports["nsq"]) as link:
            while True:
                while len(waiting) < self.pace.window:
                    waiting.append(self.send_some(link, topic))
                    if rng.random() < 0.3:
                        break
                await link.sent()
                await self.pause()
                while waiting and (len(waiting) >= self.pace.window or rng.random() < 0.9):
                    await self.settle(link, topic, waiting)

    async def settle(self, link: NsqLink, topic: TopicLedger, waiting: deque[range]) -> None:
        """Take the answer to the oldest publish."""
        try:
            await link.answer()
        except RefusedError as problem:
            topic.answered(waiting.popleft(), refused=True)
            self.refused(f"publishing to {topic.name}", problem)
        else:
            topic.answered(waiting.popleft())
            self.published.set()

    def send_some(self, link: NsqLink, topic: TopicLedger) -> range:
        draw = self.rng.random()
        if draw < 0.7:
            numbers = topic.take()
            link.send(links.pub(topic.name, body_of(numbers[0])))
        elif draw < 0.9:
            numbers = topic.take(self.rng.randrange(1, 30))
            link.send(links.mpub(topic.name, [body_of(number) for number in numbers]))
        else:
            delay_ms = self.rng.randrange(1, 250)
            numbers = topic.take(due_ns=time.time_ns() + delay_ms * 1_000_000)
            link.send(links.dpub(topic.name, body_of(numbers[0]), delay_ms))
        return numbers

    async def consume(self, ports: Ports, name: str, channel: str) -> None:
        """Finish most messages, requeue some, keep a few."""
        ledger, rng = self.topics[name].channel(channel), self.rng
        async with await NsqLink.to(ports["nsq"]) as link:
            consumer = _Consumer(link, ledger)
            try:
                await consumer.subscribe(self.pace.rdy)
            except RefusedError as problem:
                self.refused(f"subscribing to {name}", problem)
                return
            ignored = 0
            while True:
                seq_id = await consumer.next()
                if seq_id is None:
                    continue
                number, id_ = seq_id
                draw = rng.random()
                if draw < 0.04 and ignored < self.pace.ignored_max:
                    ignored += 1
                elif draw < 0.12:
                    link.send(b"REQ %s %d\n" % (id_, rng.choice((0, 0, 5, 40))))
                else:
                    consumer.finish(number, id_)
                if consumer.open >= self.pace.mark_every:
                    consumer.mark()
                await link.sent()

    async def drain(self, ports: Ports, name: str, channel: str) -> None:
        """Finish everything, until the broker reports an empty channel.

        Finding: its depth did not fall for a while. On a busy machine the whole may take longer.
        """
        ledger = self.topics[name].channel(channel)
        deadline, least = time.monotonic() + DRAIN_S, sys.maxsize
        async with (
            await NsqLink.to(ports["nsq"]) as link,
            aiohttp.ClientSession() as session,
        ):
            consumer = _Consumer(link, ledger)
            await consumer.subscribe(500)
            step = asyncio.create_task(consumer.next())
            while True:
                if (await asyncio.wait({step}, timeout=POLL_S))[0]:
                    if (found := step.result()) is not None:
                        consumer.finish(*found)
                    if consumer.open >= self.pace.mark_every:
                        consumer.mark()
                    step = asyncio.create_task(consumer.next())
                elif not await self.left(session, ports, name, channel):
                    break
                if time.monotonic() > deadline:
                    rest = await self.left(session, ports, name, channel)
                    if rest >= least:
                        raise Finding(f"{name}/{channel} does not get empty: {rest} left")
                    deadline, least = time.monotonic() + DRAIN_S, rest
            consumer.mark()
            while consumer.marks:
                await asyncio.wait_for(step, DRAIN_S)
                step = asyncio.create_task(consumer.next())
            step.cancel()
        ledger.expect_empty()

    async def left(
        self, session: aiohttp.ClientSession, ports: Ports, name: str, channel: str
    ) -> int:
        """Messages that a channel still has, in any state."""
        page = f"http://{ports['nsq_http']}/stats?format=json&topic={name}&channel={channel}"
        async with session.get(page) as answer:
            (found,) = (await answer.json())["topics"][0]["channels"]
        return int(found["depth"] + found["in_flight_count"] + found["deferred_count"])

    # --- NATS

    async def cross(self, ports: Ports) -> None:
        """Core NATS into a topic: no acknowledgement, but no message is stored twice."""
        topic = self.topics[CROSS]
        async with await NatsLink.to(ports["nats"]) as link:
            while True:
                for number in topic.take(self.rng.randrange(1, 12)):
                    link.publish(CROSS, body_of(number))
                await link.ping()
                await self.pause()

    # --- NATS Streaming

    async def stan_publish(self, ports: Ports) -> None:
        """Publish to the channel, several messages unanswered."""
        topic, waiting = self.topics[STREAM], deque[tuple[range, Any]]()
        async with await StanLink.to(ports["nats"]) as link:
            await self.register(link, PUBLISHER)
            while True:
                while len(waiting) < self.pace.window:
                    numbers = topic.take()
                    waiting.append((numbers, link.post(STREAM, body_of(numbers[0]))))
                await self.pause()
                numbers, future = waiting.popleft()
                answer = wire.decode(wire.PUB_ACK, await future)
                if answer["error"]:
                    self.refused("publishing to a channel", answer["error"])
                topic.answered(numbers, refused=bool(answer["error"]))

    async def register(self, link: StanLink, client_id: str) -> None:
        try:
            await link.register(client_id)
        except RefusedError as problem:
            self.refused(f"registering {client_id}", problem)
            raise ConnectionResetError from None

    async def stan_read(self, ports: Ports) -> None:
        """A durable that acknowledges most."""
        async with await StanLink.to(ports["nats"]) as link:
            await self.register(link, READER)
            try:
                durable = await link.subscribe(STREAM, durable="d", start=wire.FIRST, ack_wait=60)
            except RefusedError as problem:
                self.refused("subscribing", problem)
                return
            acked: list[int] = []
            counts: dict[int, int] = {}
            while True:
                sequence = self.stream.got(await durable.next())
                counts[sequence] = self.stream.redeliveries[sequence]
                if sequence % 7 == 0:
                    continue
                durable.ack(sequence)
                acked.append(sequence)
                if len(acked) >= self.pace.mark_every:
                    await link.fence()
                    self.stream.confirm(acked, counts)
                    acked.clear()
                    counts.clear()

    async def audit_stream(self, ports: Ports) -> None:
        """Read the whole channel, then the rest for the durable."""
        topic = self.topics[STREAM]
        self.audits += 1
        end = END + b" %d" % self.audits
        async with await StanLink.to(ports["nats"]) as link:
            await link.register(AUDITOR)
            every = await link.subscribe(STREAM, start=wire.FIRST, max_in_flight=AUDIT_IN_FLIGHT)
            answer = wire.decode(wire.PUB_ACK, await link.post(STREAM, end))
            if answer["error"]:
                raise Finding(f"publishing to a channel was refused: {answer['error']}")
            # Gaps are where a kill took what was given to the durable and not yet stored: those
            # sequences are not used again.
            found: set[int] = set()
            sequences: set[int] = set()
            last = 0
            while (message := await self.soon(every.next()))["data"] != end:
                every.ack(message["sequence"])
                if message["sequence"] <= last:
                    raise Finding(f"{STREAM}: sequence {message['sequence']} after {last}")
                last = message["sequence"]
                if message["data"].startswith(END) or last <= self.stream.floor:
                    continue
                sequences.add(last)
                found.add(topic.seen(last, message["data"]))
        acked = {number for number, message in topic.messages.items() if message.acked}
        if lost := acked - found:
            raise Finding(f"{STREAM}: {len(lost)} acknowledged messages lost: {some(lost)}")
        async with await StanLink.to(ports["nats"]) as link:
            await link.register(READER)
            durable = await link.subscribe(
                STREAM, durable="d", start=wire.FIRST, max_in_flight=AUDIT_IN_FLIGHT
            )
            message = {"data": b""}
            while message["data"] != end:
                message = await self.soon(durable.next())
                # What the load leaves unacknowledged would grow for ever.
                durable.ack(self.stream.got(message))
            await link.fence()
        got = set(self.stream.redeliveries) | self.stream.fenced
        if missing := sequences - got:
            raise Finding(f"{STREAM}: the durable never got sequences {some(missing)}")

    async def soon(self, coming: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(coming, DRAIN_S)
        except TimeoutError:
            raise Finding(f"{STREAM}: nothing comes any more") from None

    # --- bulk

    async def commit(self, ports: Ports) -> None:
        """Commits one after the other; an unanswered one is sent again."""
        ledger = self.commits
        if "bulk" not in ports:
            self.refused("the bulk API", "it is closed")
            return
        async with BulkLink(ports["bulk"], "writer") as link:
            while True:
                if not ledger.rows:
                    ledger.begin([self.rng.randrange(1, self.pace.rows_max) for _ in COMMITS])
                if await self.commit_once(link):
                    ledger.done()
                await self.pause()

    async def commit_once(self, link: BulkLink) -> bool:
        """Stage the rows of the epoch in new attempts and commit; whether that was answered."""
        ledger, named = self.commits, dict[str, list[list[Any]]]()
        self.attempt += 1
        for topic, numbers in ledger.rows.items():
            bodies = [body_of(number) for number in numbers]
            half = len(bodies) // 2
            parts = [bodies[:half], bodies[half:]] if half else [bodies]
            named[topic] = []
            for part, some_ in enumerate(parts):
                try:
                    named[topic].append(
                        await link.stage(ledger.epoch, topic, part, f"a{self.attempt}", some_)
                    )
                except RefusedError as problem:
                    self.refused("staging", problem)
                    return False
        status, answer = await link.commit(ledger.epoch, named)
        if status == 200:
            states = {page["state"] for page in answer["topics"].values()}
            if not states <= {"committed", "already"}:
                raise Finding(f"a commit was answered {answer}")
            return True
        if status != 409:  # what was staged is gone, or is committed: staged again
            self.refused("a commit", f"{status} {answer}")
        return False

    # --- what the files hold

    def look_into(self, data: Path, *, whole: bool = False) -> None:
        """Compare the files of a broker that does not run with the ledgers."""
        for name, topic in self.topics.items():
            files = self.files.setdefault(name, LogFiles(data, name))
            if whole:
                files.forget()
                self.present[name].clear()
            for record in files.fresh():
                if not record.body.startswith(END):
                    self.present[name].add(topic.seen(record.seq, record.body))
            if files.damaged_bytes:
                raise Finding(f"{name}: {files.damaged_bytes} damaged bytes between good records")
            topic.expect_stored(self.present[name])

    def retire(self) -> None:
        """After an audit: forget messages that must not be delivered again."""
        for name, topic in self.topics.items():
            if name != STREAM:
                topic.retire()
        self.stream.retire()

    async def run_on(self, ports: Ports) -> None:
        """Until `stop` is set; disconnected clients reconnect."""
        factories = [
            partial(self.publish, ports, WORK),
            partial(self.publish, ports, LATE),
            partial(self.cross, ports),
            partial(self.stan_publish, ports),
            partial(self.stan_read, ports),
            partial(self.commit, ports),
            *self.jetstream.jobs(ports),
            *(partial(self.consume, ports, n, CHANNEL) for n in (WORK, LATE, CROSS, COMMITS[1])),
        ]

        async def on(factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
            while not self.stop.is_set():
                await self.until_gone(factory())
                await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(on(factory)) for factory in factories]
        stopping = asyncio.create_task(self.stop.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
        finally:
            await ended([*tasks, stopping])

    async def audit(self, ports: Ports) -> None:
        """Consume everything that the broker still has to deliver."""
        self.doing = "committing"
        if self.commits.rows:
            async with BulkLink(ports["bulk"], "writer") as link:
                if not await self.commit_once(link) and not await self.commit_once(link):
                    raise Finding("a commit that is sent again is not answered")
            self.commits.done()
        for name, topic in self.topics.items():
            for channel in topic.channels:
                self.doing = f"draining {name}/{channel}"
                await self.drain(ports, name, channel)
        self.doing = f"reading {STREAM}"
        await self.audit_stream(ports)
        self.doing = "reading a stream of JetStream"
        await self.jetstream.audit(ports)

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.random() * self.pace.pause_s)


async def ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel them until they have ended: a cancellation in the moment in which what they wait for
    arrives may pass unnoticed."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=CANCEL_S)
    await asyncio.gather(*tasks, return_exceptions=True)


class _Consumer:
    """A subscribed connection that records which FINs are confirmed."""

    def __init__(self, link: NsqLink, ledger: ChannelLedger) -> None:
        self.link, self.ledger = link, ledger
        self.finished: list[int] = []
        self.attempts: dict[int, int] = {}
        self.marks: deque[tuple[list[int], dict[int, int]]] = deque()

    @property
    def open(self) -> int:
        """Deliveries since the last mark."""
        return len(self.attempts)

    async def subscribe(self, rdy: int) -> None:
        name, channel = self.ledger.topic.name.encode(), self.ledger.name.encode()
        self.link.send(b"SUB %s %s\n" % (name, channel))
        if await self.link.answer() != b"OK":
            raise Finding("SUB was not answered with OK")
        self.link.send(b"RDY %d\n" % rdy)

    async def next(self) -> tuple[int, bytes] | None:
        """Number and id of the next message, None if an answer came instead."""
        kind, payload = await self.link.frame()
        if kind == links.MESSAGE:
            seq, attempts, id_, body = links.message(payload)
            number = self.ledger.got(seq, body, attempts, time.time_ns())
            self.attempts[number] = attempts
            return number, id_
        if kind == links.ERROR:
            if payload.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED")):
                raise Finding(f"{self.ledger.topic.name}: {payload.decode()}")
            self.marks.popleft()  # a mark that was refused says nothing
            raise ConnectionResetError
        self.ledger.confirm(*self.marks.popleft())
        return None

    def finish(self, number: int, id_: bytes) -> None:
        self.ledger.finish_sent(number)
        self.finished.append(number)
        self.link.send(b"FIN %s\n" % id_)

    def mark(self) -> None:
        """Publish a message: its answer comes after everything sent before."""
        self.link.send(links.pub(MARKS, b"."))
        self.marks.append((self.finished, self.attempts))
        self.finished, self.attempts = [], {}
