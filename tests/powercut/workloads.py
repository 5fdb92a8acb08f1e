"""The work of the recorded brokers, with a ledger of their answers."""

from __future__ import annotations

import contextlib
import errno
import json
import select
import signal
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from support.bulk.writer import BulkWriter
from support.clients.bulk import BulkClient
from support.clients.http import request
from support.clients.nsq import MESSAGE, Wire
from support.clients.upload import block
from support.stan.client import StanClient

from broker.engine.log.record import crc32c
from powercut import sources, stream_work
from powercut.bodies import LANE, body_of, number_of
from powercut.history import RecordError
from powercut.recording import GIVEN, Recorded, Recording

FACTS = slice(48, 64)  # of the header of a segment: whose own it is
SUMMED, SUM = slice(16, 64), slice(12, 16)
TRIES = 3  # to record a workload


def command(words: bytes, body: bytes) -> bytes:
    return words + b"\n" + struct.pack(">i", len(body)) + body


class Nsq(Wire):
    """One NSQ connection; heartbeats are answered."""

    def __init__(self, rec: Recording) -> None:
        super().__init__(rec.ports["nsq"])
        self.rec = rec
        self.send(b"  V2")

    def frame(self) -> tuple[int, bytes]:
        while True:
            kind, data = super().frame()
            if data != b"_heartbeat_":
                return kind, data
            self.send(b"NOP\n")

    def publish(self, topic: str, numbers: Iterable[int], window: int = 64) -> list[int]:
        """Publish messages with a window of unanswered ones; those answered OK."""
        left, waiting, stored = list(numbers), [], []
        while left or waiting:
            if len(waiting) <= window // 2 and left:
                fresh, left = left[: window - len(waiting)], left[window - len(waiting) :]
                self.rec.mark("ask", t=topic, n=fresh)
                self.send(
                    b"".join(command(b"PUB " + topic.encode(), body_of(topic, n)) for n in fresh)
                )
                waiting += fresh
            kind, data = self.frame()
            number = waiting.pop(0)
            if data == b"OK":
                self.rec.mark("ok", t=topic, n=[number])
                stored.append(number)
            else:
                assert data.startswith(b"E_PUB_FAILED"), (kind, data)
        return stored

    def pour(self, topic: str, numbers: Iterable[int], group: int = 8) -> None:
        """Publish small groups of messages without waiting: more arrive during each sync, for the
        next one."""
        left, waiting = list(numbers), []
        while left or waiting:
            if left:
                fresh, left = left[:group], left[group:]
                self.rec.mark("ask", t=topic, n=fresh)
                self.send(
                    b"".join(command(b"PUB " + topic.encode(), body_of(topic, n)) for n in fresh)
                )
                waiting += fresh
            while waiting and (
                self.received or select.select([self.socket], [], [], 0.001 if left else 10)[0]
            ):
                kind, data = self.frame()
                assert data == b"OK", (kind, data)
                self.rec.mark("ok", t=topic, n=[waiting.pop(0)])

    def subscribe(self, topic: str, channel: str, ready: int = 50) -> None:
        self.send(b"SUB %s %s\nRDY %d\n" % (topic.encode(), channel.encode(), ready))
        assert self.frame()[1] == b"OK"
        self.rec.mark("chan", t=topic, c=channel)

    def consume(self, topic: str, channel: str, count: int, every: int = 1) -> None:
        """Receive and finish this many messages, except each `every`th if that is above 1."""
        for at in range(count):
            kind, data = self.frame()
            assert kind == MESSAGE, data
            number = number_of(topic, data[26:])
            assert number is not None, data
            if every == 1 or at % every:
                self.rec.mark("fin", t=topic, c=channel, n=[number])
                self.send(b"FIN %s\n" % data[10:26])

    def __enter__(self) -> Nsq:
        return self


def together(*works: Callable[[], object]) -> None:
    """Run all of them at the same time; the first failure is raised."""
    problems: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def turns(rec: Recording, seconds: float = 1.1) -> None:
    """Wait for the housekeeping, which runs each second without a notification."""
    threading.Event().wait(seconds)


def post(rec: Recording, path: str, **query: str) -> None:
    answer = request(rec.ports["nsq_http"], "POST", path, b"", **query)
    assert answer.status == 200, (path, answer)


# --- NSQ


def nsq_busy(rec: Recording) -> None:
    """One topic that is synced all the time: overlapping syncs, new segments, spare files."""
    rec.segment = "32KiB"  # more than what waits for a sync
    rec.begin()
    rec.start()

    def busy(lane: int) -> None:
        with Nsq(rec) as link:
            link.pour("always.a", range(lane * LANE, lane * LANE + 250))
            turns(rec)  # now the file of the next segment is made beforehand
            link.pour("always.a", range(lane * LANE + 300, lane * LANE + 600))

    together(*(lambda lane=lane: busy(lane) for lane in range(2)))
    rec.stop()
    rec.start()
    busy(5)
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    busy(6)
    rec.stop()


def nsq_logs(rec: Recording) -> None:
    """All sync policies, new topics, a clean stop and a catalog, a kill."""
    rec.begin()
    rec.start()
    with Nsq(rec) as link:
        for number, topic in enumerate(("per.a", "none.a", "per.b", "always.b")):
            link.publish(topic, range(number, number + 20))
        for number in range(6):
            turns(rec, 0.2)
            link.publish(f"per.new{number}", range(3))
            link.publish(f"always.new{number}", range(3), window=1)
    rec.stop()
    rec.start()
    with Nsq(rec) as link:
        link.publish("per.a", range(1000, 1030))
        link.publish("always.b", range(1000, 1040))
        link.publish("always.late", range(10))
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    with Nsq(rec) as link:
        link.publish("per.a", range(2000, 2010))
        link.publish("always.b", range(2000, 2010))
    rec.stop()


def nsq_killed(rec: Recording) -> None:
    """Data that a killed broker wrote without a sync, and the next one delivers."""
    rec.begin()
    rec.start()
    for topic in ("per.k", "per.l"):
        with Nsq(rec) as link:
            link.publish(topic, range(20))
    turns(rec, 2.1)  # synced by now
    for first in (100, 200):
        for topic in ("per.k", "per.l"):
            with Nsq(rec) as link:
                link.publish(topic, range(first, first + 10))
                link.publish(topic, range(first + 10, first + 20))  # synced in a second, if at all
        rec.stop(signal.SIGKILL)
        rec.mark("killed")
        rec.start()
        read_durable(rec, "per.k", "per.l")
        with Nsq(rec) as other:
            other.publish("per.l", range(first + 50, first + 60))
        read_durable(rec, "per.l")
        turns(rec)
        read_durable(rec, "per.k", "per.l")
    rec.stop(signal.SIGKILL)
    rec.bulk = False  # nobody reads ranges: the period holds all the same
    for first in (300, 400):
        rec.start()
        for topic in ("per.k", "per.l"):
            with Nsq(rec) as link:
                link.publish(topic, range(first, first + 10))
                link.publish(topic, range(first + 10, first + 20))
        rec.stop(signal.SIGKILL)
        rec.mark("killed")
    rec.start()
    rec.await_synced("per.k", "per.l")
    rec.stop()


def read_durable(rec: Recording, *topics: str) -> None:
    """Records read through the bulk API must survive: readers store their positions elsewhere."""
    client = BulkClient(rec.ports["bulk"])
    for topic in topics:
        facts = client.topic(topic)
        if facts["next"] > facts["first"]:
            pairs = []
            for frame in client.all_of(topic, facts["first"], facts["next"]):
                for record in frame.records:
                    pairs.append((record.seq, number_of(topic, record.body)))
            rec.mark("read", t=topic, pairs=pairs)


def paused(rec: Recording, link: Nsq) -> None:
    """A topic and channels that stay, and stay paused, while everything else goes on."""
    post(rec, "/topic/create", topic="always.made")
    rec.mark("made", t="always.made")
    post(rec, "/topic/create", topic="always.r")
    rec.mark("made", t="always.r")
    post(rec, "/channel/create", topic="always.r", channel="ch")
    rec.mark("chan", t="always.r", c="ch")
    rec.mark("cmade", t="always.r", c="ch")
    post(rec, "/channel/pause", topic="always.r", channel="ch")
    rec.mark("cpause", t="always.r", c="ch")
    link.publish("always.p", range(5))
    post(rec, "/topic/pause", topic="always.p")
    rec.mark("pause", t="always.p")
    link.publish("always.q", range(5))
    post(rec, "/channel/create", topic="always.q", channel="ch")
    rec.mark("chan", t="always.q", c="ch")
    rec.mark("cmade", t="always.q", c="ch")
    post(rec, "/channel/pause", topic="always.q", channel="ch")
    rec.mark("cpause", t="always.q", c="ch")


def nsq_channels(rec: Recording) -> None:
    """Channels created and deleted, journals and their compaction, pauses, re-creations."""
    rec.begin()
    rec.start()
    topic = "always.c"

    def consumer(channel: str, count: int, every: int = 1) -> None:
        with Nsq(rec) as link:
            link.subscribe(topic, channel)
            link.consume(topic, channel, count, every)

    with Nsq(rec) as link:
        paused(rec, link)
        link.publish(topic, range(30))
        together(lambda: consumer("one", 30), lambda: link.publish(topic, range(30, 40)))
        with Nsq(rec) as second:
            second.subscribe(topic, "two", 0)
            link.publish(topic, range(40, 60))
            turns(rec)
            link.publish(topic, range(60, 80), window=1)
        rounds = range(100, 400, 60)
        for first in rounds:
            together(
                lambda first=first: link.publish(topic, range(first, first + 60), window=16),
                lambda: consumer("one", 60, 7),
            )
            turns(rec, 0.6)
        post(rec, "/channel/pause", topic=topic, channel="two")
        rec.mark("cpause", t=topic, c="two")
        link.publish(topic, range(500, 510))
        post(rec, "/channel/create", topic=topic, channel="three")
        rec.mark("chan", t=topic, c="three")
        rec.mark("cmade", t=topic, c="three")
        link.publish(topic, range(510, 520), window=1)
        rec.mark("cdel-ask", t=topic, c="two")
        post(rec, "/channel/delete", topic=topic, channel="two")
        rec.mark("cdel", t=topic, c="two")
        link.publish(topic, range(520, 530))
        rec.mark("chan-ask", t=topic, c="two")
        with Nsq(rec) as second:
            second.subscribe(topic, "two", 0)
            link.publish(topic, range(530, 540), window=4)
        post(rec, "/topic/pause", topic=topic)
        rec.mark("pause", t=topic)
        link.publish(topic, range(540, 550))
        rec.mark("unpause-ask", t=topic)
        post(rec, "/topic/unpause", topic=topic)
        for first in (0, 100, 200):
            link.publish("always.d", range(first, first + 40))
            with Nsq(rec) as second:
                second.subscribe("always.d", "ch", 0)
                link.publish("always.d", range(first + 40, first + 60))
            if first < 200:
                rec.mark("del-ask", t="always.d")
                post(rec, "/topic/delete", topic="always.d")
                rec.mark("del", t="always.d")
        link.publish("per.d", range(20))
        rec.mark("del-ask", t="per.d")
        post(rec, "/topic/delete", topic="per.d")
        link.publish("per.d", range(100, 120))
    turns(rec, 1.2)
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    with Nsq(rec) as link:
        link.publish(topic, range(600, 620))
    rec.stop()


def nsq_limits(rec: Recording) -> None:
    """Retention: limits of messages, and finished messages that are kept."""
    rec.begin()
    rec.start()
    with Nsq(rec) as link, Nsq(rec) as second:
        link.publish("kept.a", range(20))
        second.subscribe("kept.a", "ch")
        link.publish("few.a", range(50))
        for first in range(100, 500, 100):
            together(
                lambda first=first: link.publish("few.a", range(first, first + 50)),
                lambda: second.consume("kept.a", "ch", 20),
            )
            link.publish("kept.a", range(first, first + 20))
            turns(rec, 0.6)
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    turns(rec)
    with Nsq(rec) as link:
        link.publish("few.a", range(1000, 1040))
        turns(rec)
    rec.stop()


def publish_failing(rec: Recording, topic: str, numbers: Iterable[int]) -> None:
    """Publish messages, some of which may be refused, which closes the connection."""
    with Nsq(rec) as link, contextlib.suppress(EOFError, ConnectionError):
        link.publish(topic, numbers, window=16)


def nsq_failing(rec: Recording) -> None:
    """A disk that fails once."""
    rec.begin()
    rec.start(fail=("always.e/0", 9, errno.EIO))
    for first in range(0, 400, 40):
        publish_failing(rec, "always.e", range(first, first + 40))
    turns(rec, 1.2)
    for first in range(500, 700, 40):
        publish_failing(rec, "always.e", range(first, first + 40))
    read_durable(rec, "always.e")
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    with Nsq(rec) as link:
        link.publish("always.e", range(1000, 1040))
    rec.stop()


# --- NATS Streaming


class Stan(StanClient):
    """A client that writes the ledger."""

    def __init__(self, rec: Recording, client_id: str) -> None:
        self.rec = rec
        super().__init__(rec, client_id)

    def put(self, channel: str, numbers: Iterable[int], window: int = 64) -> None:
        left, waiting = list(numbers), []
        while left or waiting:
            if len(waiting) <= window // 2 and left:
                fresh, left = left[: window - len(waiting)], left[window - len(waiting) :]
                self.rec.mark("ask", t=channel, n=fresh)
                waiting += [(n, self.send(channel, body_of(channel, n))) for n in fresh]
            number, inbox = waiting.pop(0)
            if not self.acked(inbox)["error"]:
                self.rec.mark("ok", t=channel, n=[number])

    def listen(self, channel: str, durable: str = "", queue: str = "", **more: Any) -> Any:
        asked = {"durable": durable, "queue": queue, "start": 4, **more}
        found = self.subscribe(channel, **{key: value for key, value in asked.items() if value})
        assert not found.error, found.error
        if durable:
            self.rec.mark("durable", t=channel, d=durable, q=queue, client=self.client_id)
        return found

    def take_all(self, sub: Any, count: int, durable: str = "", every: int = 1) -> None:
        """Receive this many messages; acknowledge all except each `every`th."""
        for at in range(count):
            message = sub.next()
            number = number_of(sub.channel, message["data"])
            assert number is not None
            self.rec.mark("seen", t=sub.channel, pairs=[(message["sequence"], number)])
            if every == 1 or at % every:
                self.rec.mark("sack", t=sub.channel, d=durable, n=[number])
                sub.ack(message["sequence"])


def stan_logs(rec: Recording) -> None:
    """Channels, durables and queue groups that are created, closed and resumed."""
    rec.begin()
    rec.start()
    one, two = Stan(rec, "one"), Stan(rec, "two")
    one.put("s.a", range(80))
    plain = one.listen("s.a")
    one.take_all(plain, 80)
    turns(rec)  # what it has acknowledged is in a journal that was synced
    one.put("s.a", range(80, 90), window=1)
    first = two.listen("s.a", "dur")
    group = two.listen("s.a", "dq", "group")
    together(
        lambda: one.put("s.a", range(100, 200)),
        lambda: (two.take_all(first, 150, "dur", 9), two.take_all(group, 150, "dq")),
    )
    one.put("s.b", range(10), window=1)
    first.close()
    one.put("s.a", range(300, 340))
    gone = two.listen("s.b", "gone")
    two.take_all(gone, 10, "gone")
    rec.mark("durable-gone", t="s.b", d="gone")
    assert not gone.unsubscribe()
    again = two.listen("s.a", "dur")
    two.take_all(again, 20, "dur")
    for number in range(4):
        one.put(f"s.new{number}", range(20))
        one.listen(f"s.new{number}", f"dur{number}")
    turns(rec)
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    three = Stan(rec, "three")
    three.put("s.a", range(400, 440))
    three.put("s.new0", range(100, 110))
    rec.stop()


def stan_limits(rec: Recording) -> None:
    """Channels with limits of count and bytes: single records are dropped."""
    rec.begin()
    rec.start()
    one = Stan(rec, "one")
    sub = None
    for first in range(0, 400, 80):
        one.put("few.s", range(first, first + 60))
        one.put("small.s", range(first, first + 60))
        one.put("all.s", range(first, first + 70), window=128)
        if sub is None:
            sub = one.listen("few.s", "dur")
    turns(rec)
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    two = Stan(rec, "two")
    two.put("few.s", range(1000, 1030))
    two.put("all.s", range(1000, 1030))
    rec.stop()


# --- bulk


def bulk(rec: Recording) -> None:
    """Blocks and commits of two writers, with other publishers; kills in between."""
    rec.begin()
    rec.start()
    topics = ("per.bulk", "always.bulk")

    def write(name: str, epochs: Iterable[int]) -> None:
        writer = BulkWriter(BulkClient(rec.ports["bulk"]), name)
        for epoch in epochs:
            named: dict[str, list[list[Any]]] = {}
            numbers: dict[str, list[int]] = {}
            lane = (1 + len(name)) * LANE + epoch * 1000
            for topic in topics:
                for part in range(2):
                    rows = list(range(lane + part * 100, lane + part * 100 + 12))
                    bodies = [body_of(topic, n) for n in rows]
                    rec.mark("ask", t=topic, n=rows)
                    found = writer.stage(epoch, topic, part, "a", bodies)
                    assert found[2] == len(block(bodies))
                    named.setdefault(topic, []).append(found)
                    numbers.setdefault(topic, []).extend(rows)
            rec.mark("commit-ask", w=name, epoch=epoch, named=named, numbers=numbers)
            page = writer.committed(epoch, named)
            rec.mark("commit", w=name, epoch=epoch, page=page)

    def live() -> None:
        with Nsq(rec) as link:
            for first in range(0, 200, 20):
                for topic in topics:
                    link.publish(topic, range(first, first + 20))

    together(lambda: write("w", range(1, 5)), lambda: write("xx", range(1, 5)), live)
    read_durable(rec, *topics)
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    together(lambda: write("w", range(5, 7)), lambda: write("xx", range(5, 6)))
    rec.stop()


class Reader:
    """A bulk reader that stores its own position in some topics."""

    def __init__(self, rec: Recording, name: str) -> None:
        self.rec, self.name = rec, name
        self.places: dict[str, tuple[int, int]] = {}  # seq, and the number of the record there
        self.hold = True

    def read(self, *topics: str, left: int, status: int = 200) -> None:
        """Read on in these topics until this many records are left; report the position."""
        positions = {}
        for topic in topics:
            with BulkClient(self.rec.ports["bulk"]) as client:
                facts = client.topic(topic)
                start, _ = self.places.get(topic, (facts["first"], 0))
                frames = client.all_of(topic, start, facts["next"])
            pairs = [(r.seq, number_of(topic, r.body)) for f in frames for r in f.records]
            self.rec.mark("read", t=topic, pairs=pairs)
            self.places[topic] = pairs[-left:][0]
            positions[topic] = {"seq": self.places[topic][0], "incarnation": facts["incarnation"]}
        self.say(positions, status)

    def read_in_vain(self, *topics: str, left: int) -> None:
        """The disk fails: the reader keeps its position and reports it."""
        before = dict(self.places)
        self.read(*topics, left=left, status=503)
        self.places = before
        self.say({})

    def say(self, positions: dict[str, Any], status: int = 200) -> None:
        """Send the position to the broker; for a known reader only the changes."""
        self.rec.mark("reader-ask", r=self.name, hold=self.hold, places=self.places)
        with BulkClient(self.rec.ports["bulk"]) as client:
            wish = {"hold": self.hold, "positions": positions}
            answer = client.ask("PUT", f"readers/{self.name}", wish)
        assert answer.status == status, answer
        if status != 200:
            return
        self.rec.mark("reader", r=self.name)
        found = answer.json["positions"]
        assert {topic: place["seq"] for topic, place in found.items()} == {
            topic: seq for topic, (seq, _) in self.places.items()
        }
        states = {place["state"] for place in found.values()}
        assert states == {"ok"} or not self.hold, found

    def let_go(self) -> None:
        """Release all holds."""
        self.hold = False
        self.say({})

    def end(self) -> None:
        """Delete the reader."""
        self.rec.mark("reader-gone-ask", r=self.name)
        with BulkClient(self.rec.ports["bulk"]) as client:
            answer = client.ask("DELETE", f"readers/{self.name}")
        assert answer.json == {"deleted": True}, answer
        self.rec.mark("reader", r=self.name)


def bulk_readers(rec: Recording) -> None:
    """Readers that hold records above the limits, move on, release them and expire."""
    rec.begin()
    rec.start()
    topics = ("few.r", "kept.r", "few.sr")
    all_, some = Reader(rec, "all"), Reader(rec, "some")

    def publish(first: int, *works: Callable[[], object]) -> None:
        stan = Stan(rec, f"from{first}")
        with Nsq(rec) as one, Nsq(rec) as two, Nsq(rec) as three:
            three.subscribe("kept.r", "ch")
            together(
                lambda: one.publish("few.r", range(first, first + 50)),
                lambda: (
                    two.publish("kept.r", range(first, first + 50), window=16),
                    three.consume("kept.r", "ch", 50),
                ),
                lambda: stan.put("few.sr", range(first, first + 50)),
                *works,
            )
        turns(rec, 0.6)  # in most of them the limits are looked at

    publish(0)
    all_.read(*topics, left=20)
    publish(100, lambda: some.read("few.r", left=5))
    publish(200, lambda: all_.read("kept.r", left=5))
    some.read("few.r", left=30)
    all_.read(*topics, left=25)
    publish(300, lambda: some.read("few.r", left=3))
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start(fail=("bulk/readers", 2, errno.EIO))  # of the folder, with the new name in it
    all_.read_in_vain("few.r", "few.sr", left=5)
    publish(400, lambda: all_.read("few.r", "few.sr", left=40))
    some.let_go()
    publish(500, some.end)
    again = Reader(rec, "some")
    again.read("few.sr", left=10)
    publish(600, all_.let_go)
    rec.stop()
    rec.start()
    publish(700, lambda: again.read("few.sr", left=10))
    rec.stop()


# --- what others have written, and what we did before


def imports(rec: Recording) -> None:
    """The folders of an nsqd and of a NATS Streaming server are imported, and used."""
    rec.begin()
    for kind in (sources.NSQD, sources.STAN):
        folder = rec.source(kind)
        sources.place(kind, folder)
        rec.mark("import-ask", kind=kind, folder=str(folder))
        code = rec.call(f"import-{kind}", str(folder), "-c", str(rec.configured()), "--quiet")
        assert code == 0, code
        rec.mark("import", kind=kind)
    rec.start()
    with Nsq(rec) as link:
        link.publish(sources.TOPIC, range(1000, 1020))
        link.subscribe(sources.TOPIC, "a")
        link.consume(sources.TOPIC, "a", 30)
    one = Stan(rec, "one")
    one.put(sources.CHANNEL, range(1000, 1020))
    turns(rec)
    rec.stop()


def old_files(rec: Recording) -> None:
    """A folder that an earlier build has left: metadata without a checksum, segments that do not
    say whose they are."""
    rec.begin()
    rec.start()
    topics = ("always.o", "per.o")
    with Nsq(rec) as link:
        for topic in topics:
            link.publish(topic, range(80))
        with Nsq(rec) as second:
            second.subscribe("always.o", "ch")
            link.publish("always.o", range(80, 110))
            second.consume("always.o", "ch", 10)
    rec.stop()
    age(rec.data)
    rec.begin_again()
    for topic in topics:
        rec.mark("ask", t=topic, n=list(range(80)))
        rec.mark("ok", t=topic, n=list(range(80)))
    rec.mark("chan", t="always.o", c="ch")
    rec.mark("ask", t="always.o", n=list(range(80, 110)))
    rec.mark("ok", t="always.o", n=list(range(80, 110)))
    rec.mark("fin", t="always.o", c="ch", n=list(range(80, 90)))
    rec.mark("period", topics=["per.o"])
    rec.mark(GIVEN)
    rec.start()
    with Nsq(rec) as link:
        for topic in topics:
            link.publish(topic, range(1000, 1040))
        post(rec, "/topic/pause", topic="always.o")
        post(rec, "/topic/unpause", topic="always.o")
    rec.stop(signal.SIGKILL)
    rec.mark("killed")
    rec.start()
    rec.stop()


def age(data: Path) -> None:
    """Make files as builds have left them that wrote neither checksums of metadata nor whose own
    a segment is."""
    for path in data.rglob(".catalog"):
        path.unlink()
    for path in data.glob("logs/*/meta.json"):
        page = json.loads(path.read_bytes())
        del page["crc"]
        path.write_text(json.dumps(page, indent=2))
    for path in data.glob("logs/*/*.seg"):
        content = bytearray(path.read_bytes())
        content[FACTS] = bytes(FACTS.stop - FACTS.start)
        content[SUM] = struct.pack("<I", crc32c(content[SUMMED]))
        path.write_bytes(content)


WORKLOADS: dict[str, Callable[[Recording], None]] = {
    "nsq-logs": nsq_logs,
    "nsq-busy": nsq_busy,
    "nsq-killed": nsq_killed,
    "nsq-channels": nsq_channels,
    "nsq-limits": nsq_limits,
    "nsq-failing": nsq_failing,
    "stan-logs": stan_logs,
    "stan-limits": stan_limits,
    "bulk": bulk,
    "bulk-readers": bulk_readers,
    "imports": imports,
    "old-files": old_files,
    **stream_work.WORKLOADS,
}


def record(name: str) -> Recorded:
    """Run a workload. Once more if the record has a gap: a kill may come between a call and the
    line about it."""
    for left in reversed(range(TRIES)):
        try:
            with Recording(name) as rec:
                WORKLOADS[name](rec)
                return rec.history()
        except RecordError:
            if not left:
                raise
    raise AssertionError
