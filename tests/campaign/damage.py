"""Every byte of a small data folder flipped, and every file cut to every length.

A folder with a file of each kind is made once, by a broker that is killed. For each byte there is
a case with one bit flipped, one with all eight, and one with the file cut there. The broker has to
start on each, report what it found, serve every untouched record, keep finished messages
finished, and delete no unreadable data.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import re
import select
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from support.bulk.writer import BulkWriter
from support.clients.bulk import BulkClient, read_frame
from support.clients.http import request
from support.configuration import NATS_AND_BULK
from support.engine import scratch
from support.native.cursors import Acks
from support.native.logs import scan_records
from support.servers.processes import START_DEADLINE_S
from support.services import begin_bulk, streaming_of, writes_of
from support.stan import wire
from support.stan.client import StanClient

from broker.config.load import load as load_config
from broker.engine.log.files import escape, unescape
from broker.engine.log.publish import append, outcome
from broker.server.server import Server
from campaign import links, report
from campaign.brokers import ForkedBroker, Spawner
from campaign.faults import Faults
from campaign.jetstream import FETCHED, JetStreamLink
from campaign.links import NsqLink, message
from campaign.logfiles import LogFiles

HEADER = 64
JOURNAL_HEADER = 16
CASES_OF_A_WORKER = 400
CASE_S = 60.0  # a case that takes longer hangs
WINDOW = 8  # bytes on both sides of the damage that are still somewhere afterwards
REPORT_S = 30.0
FINDINGS_MAX = 60
WRITER, READER, EPOCHS = "w", "r", 3
DELAY_MS = 3_600_000  # the longest that the broker allows
MINUTES_MAX = 55.0  # what is deferred in the folder stays so
STREAM, CONSUMER, STREAM_LOG = "J", "C", "js.$G/J"
ACKED_OF = 12  # messages, two of three
CONFIG = """
[stan]
enabled = true
[jetstream]
enabled = true
[storage]
sync = "always"
segment_size = "4KiB"
"""
# Files that say nothing a broker needs.
WITHOUT_CONTENT = ("twinwire.lock",)


@dataclass(frozen=True)
class Case:
    """One change of one file."""

    path: str
    kind: str  # flip, invert, cut
    at: int
    bit: int = 0

    def apply(self, folder: Path) -> None:
        """Change the file."""
        file = folder / self.path
        if self.kind == "cut":
            os.truncate(file, self.at)
            return
        data = bytearray(file.read_bytes())
        data[self.at] ^= 0xFF if self.kind == "invert" else 1 << self.bit
        file.write_bytes(data)

    def __str__(self) -> str:
        what = f"bit {self.bit}" if self.kind == "flip" else ""
        return f"{self.path}: {self.kind} {what} at {self.at}".replace("  ", " ")


@dataclass
class State:
    """The state of a broker as its clients see it."""

    records: dict[str, dict[str, str]] = field(default_factory=dict)  # log -> seq -> body
    acked: dict[str, list[int]] = field(default_factory=dict)  # log/cursor -> seqs
    deferred: dict[str, int] = field(default_factory=dict)
    paused: dict[str, bool] = field(default_factory=dict)  # log or log/cursor
    protocols: dict[str, str | None] = field(default_factory=dict)
    clients: list[str] = field(default_factory=list)
    durables: list[str] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)  # of the stream: seq -> subject and body
    consumer: list[int] = field(default_factory=list)  # delivered, floor, pending, messages left
    readers: dict[str, Any] = field(default_factory=dict)
    writers: dict[str, Any] = field(default_factory=dict)
    identity: list[Any] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # logs that take no record
    logged: list[str] = field(default_factory=list)
    health: str | None = None


# --- a folder with everything in it


async def make(spawner: Spawner, faults: Faults, folder: Path) -> Path:
    """The data folder of a broker that was killed during a commit."""
    broker = ForkedBroker(spawner, folder, CONFIG, folder / "data")
    await asyncio.to_thread(broker.start)
    await asyncio.to_thread(_fill, broker)
    await _consume(broker)
    await _fill_stream(broker)
    await asyncio.to_thread(_stage, broker, faults)  # and kills it
    faults.slow_syncs(0)
    return broker.data


def _fill(broker: ForkedBroker) -> None:
    for topic, channels in (("t", ("c", "idle")), ("p", ("c",)), ("k", ())):
        request(broker.nsq_http, "POST", "/topic/create", topic=topic)
        for channel in channels:
            request(broker.nsq_http, "POST", "/channel/create", topic=topic, channel=channel)
    for topic, count in (("t", 70), ("p", 6)):
        for number in range(count):
            body = b"%s %d" % (topic.encode(), number)
            assert request(broker.nsq_http, "POST", "/pub", body, topic=topic).status == 200
    request(broker.nsq_http, "POST", "/pub", b"later", topic="p", defer=DELAY_MS)
    request(broker.nsq_http, "POST", "/topic/pause", topic="p")
    request(broker.nsq_http, "POST", "/channel/pause", topic="t", channel="idle")
    client = StanClient(broker, "client")
    durable = client.subscribe("s", durable="d", start=wire.FIRST, max_in_flight=4)
    client.fill("s", 12)
    for _ in range(6):
        durable.next(ack=True)
    client.ping()
    client.peer.close()
    with BulkClient(broker.bulk) as bulk:
        at = {"seq": 20, "incarnation": bulk.topic("t")["incarnation"]}
        body = {"ttl_s": 3600, "hold": True, "positions": {"t": at}}
        assert bulk.ask("PUT", f"readers/{READER}", body).status == 200


async def _consume(broker: ForkedBroker) -> None:
    """Finish every second of the first records, requeue a few."""
    async with await NsqLink.to(broker.nsq) as link:
        link.send(b"SUB t c\nRDY 20\n")
        await link.answer()
        for number in range(40):
            _, payload = await link.frame()
            _, _, id_, _ = message(payload)
            if number % 5 == 4:
                link.send(b"REQ %s %d\n" % (id_, DELAY_MS))
            elif number % 2 == 0:
                link.send(b"FIN %s\n" % id_)
            else:
                link.send(b"REQ %s 0\n" % id_)
        link.send(links.pub("t", b"mark"))
        while (await link.frame())[0] == links.MESSAGE:
            pass


async def _fill_stream(broker: ForkedBroker) -> None:
    """A stream with subjects, headers and deleted messages, and a consumer that has acked some."""
    async with await JetStreamLink.to(broker.nats) as link:
        link.begin()
        config = {"name": STREAM, "subjects": ["j.>"], "max_msgs_per_subject": 6}
        await _done(link, f"STREAM.CREATE.{STREAM}", config)
        asked = {"durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": DELAY_MS * 10**6}
        place = f"{STREAM}.{CONSUMER}"
        await _done(link, f"CONSUMER.CREATE.{place}", {"stream_name": STREAM, "config": asked})
        for number in range(30):
            await link.ask(f"j.{number % 4}", b"j %d" % number)
        for seq in (20, 25):
            await _done(link, f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq})
        replies = asyncio.Queue[str]()
        link.handlers[FETCHED.decode()] = lambda _s, reply, _d: replies.put_nowait(reply.decode())
        request = json.dumps({"batch": ACKED_OF}).encode()
        link.publish(f"$JS.API.CONSUMER.MSG.NEXT.{place}", request, f"_INBOX.fetched.{id(link)}")
        for number in range(ACKED_OF):
            reply = await replies.get()
            if number % 3:
                await link.ask(reply, b"+ACK")


async def _done(link: JetStreamLink, verb: str, body: object = None) -> dict[str, Any]:
    answer = await link.api(verb, body)
    assert "error" not in answer, answer
    return answer


def _stage(broker: ForkedBroker, faults: Faults) -> None:
    """One epoch committed, one staged, and one whose commit is interrupted."""
    with BulkClient(broker.bulk) as bulk:
        writer = BulkWriter(bulk, WRITER)
        rows = [b"row %d" % number for number in range(5)]
        writer.committed(1, {"k": [writer.stage(1, "k", 0, "a", rows)]})
        writer.stage(EPOCHS, "k", 0, "c", [b"staged"])
        named = [writer.stage(2, "k", 0, "b", [b"intent %d" % n for n in range(4)])]
    faults.slow_syncs(0.4)
    intents = broker.data / "staged" / ".intents"
    child = os.fork()
    if child == 0:
        try:
            with BulkClient(broker.bulk) as bulk:
                BulkWriter(bulk, WRITER).commit(2, {"k": named})
        finally:
            os._exit(0)
    deadline = time.monotonic() + START_DEADLINE_S
    watched = os.pidfd_open(child)
    while not list(intents.glob("*.json")):
        assert time.monotonic() < deadline, "no commit has begun"
        select.select([watched], [], [], 0.005)
    broker.shoot()
    os.waitpid(child, 0)
    os.close(watched)


# --- opening it


class _LoggedLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def look(data: Path, config: Path) -> State:
    """Start a broker on a folder, collect its state, publish to each log, and stop it."""
    logged = _LoggedLines()
    logging.getLogger().addHandler(logged)
    server = Server(load_config(config))
    try:
        await server.start()
        await begin_bulk(server)
        try:
            state = await _look(server)
        finally:
            await server.stop()
    finally:
        logging.getLogger().removeHandler(logged)
    state.logged = logged.lines
    return state


async def _get(link: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str) -> bytes | None:
    """The body of a page of the bulk API; None if it is refused."""
    reader, writer = link
    writer.write(b"GET /bulk/v1/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
    status = (await reader.readline()).split()[1]
    size = 0
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    body = await reader.readexactly(size)
    return body if status == b"200" else None


async def _look(server: Server) -> State:
    state, engine = State(), server.engine
    # To its end, or to where it waits for another try; what was staged leaves in a task of its own.
    while commits := list(writes_of(server).commits._tasks):
        await asyncio.wait(commits, timeout=CASE_S)
    await engine.settle()
    is_open = "bulk" in server.ports  # else its identity does not read
    link = await asyncio.open_connection(*server.ports["bulk" if is_open else "nats"])
    await _look_at_stream(server, state)
    for name, log in sorted(engine.logs.items()):
        if name == STREAM_LOG:
            continue  # its messages are those of a stream
        if is_open:
            state.records[name] = await _records(link, name, log)
        else:
            files = LogFiles(Path(server.config.server.data), name)
            found = {str(record.seq): record.body.decode("latin-1") for record in files.fresh()}
            state.records[name] = found
        state.paused[name] = log.paused
        state.protocols[name] = log.protocol
        for cursor in log.cursors.values():
            key = f"{name}/{cursor.name}"
            seqs = map(int, state.records[name])
            state.acked[key] = [seq for seq in seqs if seq in Acks(cursor.acks)]
            state.deferred[key] = cursor.deferred_count
            state.paused[key] = cursor.paused
    if is_open:
        await _pages(link, state)
    link[1].close()
    streaming = streaming_of(server)
    assert streaming is not None
    state.clients = sorted(streaming.store.clients)
    state.durables = sorted(
        f"{sub.channel}/{sub.cursor}/{sub.durable_name}" for sub in streaming.store.subs.values()
    )
    state.health = server.health()
    await _publish(server, state)
    return state


async def _look_at_stream(server: Server, state: State) -> None:
    """The stream's messages and its consumer, and whether it takes another message."""
    async with await JetStreamLink.to(server.ports["nats"]) as link:
        link.begin()
        info = await link.api(f"STREAM.INFO.{STREAM}")
        if "error" in info:
            return
        for seq in range(1, info["state"]["last_seq"] + 1):
            answer = await link.api(f"STREAM.MSG.GET.{STREAM}", {"seq": seq})
            if "message" in answer:
                message = answer["message"]
                body = base64.b64decode(message.get("data", "")).decode("latin-1")
                state.messages[str(seq)] = f"{message['subject']} {body}"
        found = await link.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
        if "error" not in found:
            places = (found[what]["stream_seq"] for what in ("delivered", "ack_floor"))
            state.consumer = [*places, found["num_ack_pending"], found["num_pending"]]
        ack = json.loads(await link.ask("j.more", b"more"))
        if "error" in ack:
            state.refused.append(STREAM_LOG)


async def _records(
    link: tuple[asyncio.StreamReader, asyncio.StreamWriter], name: str, log: Any
) -> dict[str, str]:
    """All records of a log that readers get."""
    found: dict[str, str] = {}
    at = log.first_seq
    while at < log.next_seq:
        raw = await _get(link, f"range/{escape(name)}?start={at}")
        if raw is None:
            break
        frame = read_frame(raw)
        found |= {str(record.seq): record.body.decode("latin-1") for record in frame.records}
        if frame.next <= at:
            break
        at = frame.next
    return found


async def _pages(link: tuple[asyncio.StreamReader, asyncio.StreamWriter], state: State) -> None:
    """The bulk API's readers, writers and identity."""
    page = json.loads(await _get(link, "readers") or b"{}")
    state.readers = {
        one["name"]: [one["hold"], one["ttl_s"], one["positions"]]
        for one in page.get("readers", [])
    }
    for one in state.readers.values():
        for position in one[2].values():
            position.pop("lag", None)
            position.pop("first", None)
    state.writers = json.loads(await _get(link, f"tx/{WRITER}") or b"{}")
    for staged in (state.writers.get("staged") or {}).values():
        staged.pop("expires_s")
    about = json.loads(await _get(link, "topics") or b"{}")
    state.identity = [about.get("broker_id"), about.get("partition")]


async def _publish(server: Server, state: State) -> None:
    """One more record for each log."""
    engine = server.engine
    logs = {name: log for name, log in engine.logs.items() if name != STREAM_LOG}
    tickets = {name: append(log, b"more") for name, log in logs.items()}
    await engine.settle()
    for name, ticket in tickets.items():
        log = engine.log(name)
        assert log is not None
        for _ in range(2000):
            if not ticket or outcome(log, ticket):
                break
            await asyncio.sleep(0.001)
        if not ticket or outcome(log, ticket) != 1:
            state.refused.append(name)


# --- judging what was found


def journal_ends(data: bytes) -> set[int]:
    """Where a journal may end: after its header, or after any block."""
    at, ends = JOURNAL_HEADER, {0, JOURNAL_HEADER}
    while at + 8 <= len(data):
        at += 8 + int.from_bytes(data[at : at + 4], "little")
        ends.add(at)
    return ends


class Judge:
    """Knows the original folder, and the changes that a case may cause."""

    def __init__(self, folder: Path, base: State) -> None:
        self.folder, self.base = folder, base
        self.layout: dict[str, list[tuple[int, int, str]]] = {}  # of a segment: from, to, seq
        for path in folder.rglob("*.seg"):
            data = path.read_bytes()
            spans, at = [], HEADER
            for seq, *_ in scan_records(data[HEADER:], data[16:32], int(path.stem))[0]:
                length = int.from_bytes(data[at : at + 4], "little")
                spans.append((at, at + length, str(seq)))
                at += length + 7 & ~7
            self.layout[str(path.relative_to(folder))] = spans

    def touched(self, case: Case) -> set[str]:
        """Seqs of the records that the case damages."""
        spans = self.layout.get(case.path, [])
        if case.kind == "cut":
            return {seq for _, end, seq in spans if end > case.at}
        return {seq for start, end, seq in spans if start <= case.at < end}

    def problems(self, case: Case, found: State, data: Path) -> Iterator[str]:
        """The problems of a state."""
        touched = self.touched(case)
        parts = Path(case.path).parts
        here = unescape(parts[1]) if parts[0] == "logs" and len(parts) > 2 else ""
        for name in self.base.records:
            if name in found.records:
                yield from self._log(case, name, found, touched if name == here else set())
                if name in found.refused and name != here:
                    yield f"log {name} takes no records"
                before = self.base.protocols[name]
                if found.protocols[name] != before and not (name == here and found.logged):
                    yield f"log {name} belongs to {found.protocols[name]}, it was {before}"
            elif not (name == here and f"log {name}:" in (found.health or "")):
                yield f"log {name} is not there"
        journal = parts[-1].removesuffix(".cur") if "cursors" in parts else ""
        for key in self.base.acked:
            name, _, cursor = key.rpartition("/")
            if name in found.records:
                mine = name == here and escape(cursor) == journal
                forgotten = key.startswith("s/") and not self._matters(case)
                yield from self._cursor(key, found, mine=mine or forgotten, harmed=bool(touched))
        for key, paused in self.base.paused.items():
            mine = key.startswith(here or "\0")
            if found.paused.get(key, paused) != paused and not (
                mine and (found.logged or not self._matters(case))
            ):
                yield f"{key}: paused is {not paused}"
        yield from self._stream(case, found, touched if here == STREAM_LOG else set(), here)
        yield from self._others(case, found)
        if differ := self.differs(found):
            if not found.logged and not found.health and self._matters(case):
                yield f"nothing is reported: {', '.join(differ)} differ"
            yield from self._deleted(case, data)

    def _log(self, case: Case, name: str, found: State, touched: set[str]) -> Iterator[str]:
        """The records of one log."""
        records, served = self.base.records[name], found.records[name]
        lost = {seq for seq in records if served.get(seq) != records[seq]} - touched
        if name == "k":  # rows of the commit that was cut off: where they are may differ
            bodies = list(served.values())
            lost = {
                seq
                for seq in lost
                if not records[seq].startswith("intent")
                or not (case.path.startswith("staged") or bodies.count(records[seq]) == 1)
            }
        if lost:
            yield f"log {name}: records {', '.join(sorted(lost, key=int)[:8])} are not served"
        if wrong := [seq for seq in served if served[seq] not in records.values()]:
            yield f"log {name}: seq {wrong[0]} has an unknown body: {served[wrong[0]]!r}"
        if len(set(served.values())) < len(served):
            yield f"log {name}: a message is there twice"

    def _cursor(self, key: str, found: State, *, mine: bool, harmed: bool) -> Iterator[str]:
        """What one cursor is done with. `mine`: its journal was damaged; `harmed`: records."""
        if key not in found.acked:
            if not mine:
                yield f"cursor {key} is not there"
            return
        present = {int(seq) for seq in found.records[key.rpartition("/")[0]]}
        now, before = set(found.acked[key]) & present, set(self.base.acked[key]) & present
        if more := now - before:
            yield f"cursor {key}: {sorted(more)[:8]} count as done with"
        if not mine and (fewer := before - now):
            yield f"cursor {key}: {sorted(fewer)[:8]} are not done with any more"
        if not mine and not harmed and found.deferred[key] != self.base.deferred[key]:
            yield f"cursor {key}: {found.deferred[key]} deferred"

    def _stream(self, case: Case, found: State, touched: set[str], here: str) -> Iterator[str]:
        """The stream and its consumer."""
        log_harmed, before, now = here == STREAM_LOG, self.base.messages, found.messages
        of_stream = log_harmed or case.path.startswith("jetstream/")
        reported = bool(found.logged or found.health) or not self._matters(case)
        if STREAM_LOG in found.refused and not of_stream:
            yield "the stream takes no messages"
        if not now and of_stream and any("offline" in line for line in found.logged):
            return  # it is offline, and requests say why
        if lost := {seq for seq in before if now.get(seq) != before[seq]} - touched:
            yield f"stream: messages {', '.join(sorted(lost, key=int)[:8])} are not served"
        if (back := now.keys() - before.keys()) and not (log_harmed and reported):
            yield f"stream: messages {', '.join(sorted(back, key=int)[:8])} are there again"
        if wrong := [seq for seq in now if before.get(seq, now[seq]) != now[seq]]:
            yield f"stream: message {wrong[0]} is {now[wrong[0]]!r}"
        if found.consumer == self.base.consumer:
            return
        further = found.consumer and found.consumer[1] > self.base.consumer[1]
        if (further and not touched) or not (of_stream and reported):
            yield f"stream: its consumer is at {found.consumer}, was at {self.base.consumer}"

    def _others(self, case: Case, found: State) -> Iterator[str]:
        for what, place in (
            ("clients", "stan/"),
            ("durables", "stan/"),
            ("readers", "bulk/readers/"),
            ("writers", "staged/"),
            ("identity", "bulk/broker.json"),
        ):
            before, now = getattr(self.base, what), getattr(found, what)
            if found.health and found.health.startswith("log ") and case.path.startswith("logs/"):
                continue  # what concerns a log that is quarantined waits for it
            if case.path == "bulk/broker.json" and found.health:
                continue  # the bulk API is closed, and says so
            if what == "writers" and case.path.startswith("logs/k/"):
                continue  # rows of the commit that was cut off come again where they do not read
            if not self._matters(case):
                continue
            if before != now and not case.path.startswith(place):
                yield f"{what} were {before} and are {now}"
            elif before != now and not found.logged:
                yield f"{what} were {before} and are {now}, nothing is reported"

    def differs(self, found: State) -> list[str]:
        """The differences from the original state."""
        before, now = asdict(self.base), asdict(found)
        return [
            what
            for what in before
            if what not in ("logged", "health") and before[what] != now[what]
        ]

    def _matters(self, case: Case) -> bool:
        """Whether it can be noticed. A file that only grows, cut between two of its entries, is
        what it was when it ended there; so is an upload that is cut anywhere."""
        if case.kind != "cut":
            return True
        if case.path in self.layout:
            name = Path(case.path).parts[1]
            last = max(p for p in self.layout if Path(p).parts[1] == name)
            ends = [(end, end + 7 & ~7) for _, end, _ in self.layout[case.path]]
            whole = any(end <= case.at <= padded for end, padded in ends)
            return case.path != last or not (whole or case.at <= HEADER)
        if case.path.endswith((".cur", ".acks")):
            return case.at not in journal_ends((self.folder / case.path).read_bytes())
        if case.path == "stan/clients.state":
            data = (self.folder / case.path).read_bytes()
            return case.at == 0 or b"\n" not in data[case.at - 1 : case.at + 1]
        return not case.path.endswith(".blk")

    def _deleted(self, case: Case, data: Path) -> Iterator[str]:
        """The bytes around the damage are still somewhere."""
        if case.path in WITHOUT_CONTENT:
            return
        harmed = bytearray((self.folder / case.path).read_bytes())
        begin, end = max(0, case.at - WINDOW), case.at + WINDOW
        if case.path in self.layout:  # a record alone: a torn one is put into a file of its own
            if case.at < HEADER:
                return
            starts = [start for start, _, _ in self.layout[case.path] if start <= case.at]
            begin = max(begin, HEADER, *starts)
        if case.kind == "cut":
            end = case.at
        else:
            harmed[case.at] ^= 0xFF if case.kind == "invert" else 1 << case.bit
        window = bytes(harmed[begin:end]).strip(b"\0")
        if not any(window in path.read_bytes() for path in data.rglob("*") if path.is_file()):
            yield "the damaged bytes are nowhere any more"


# --- running cases


def cases(folder: Path, rng: random.Random) -> list[Case]:
    """All cases, in random order."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        name = str(path.relative_to(folder))
        for at in range(path.stat().st_size):
            found.append(Case(name, "flip", at, rng.randrange(8)))
            found.append(Case(name, "invert", at))
            found.append(Case(name, "cut", at))
    rng.shuffle(found)
    return found


class Bench:
    """Opens damaged copies of one folder, each batch in a process of its own."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.base = base
        self.data = folder / "case"
        self.config = folder / "open.toml"
        self.config.write_text(NATS_AND_BULK.format(data=self.data) + CONFIG)
        self.judge = Judge(base, self.whole())

    def whole(self) -> State:
        """The folder as it is: what every case is compared with."""
        self.restore()
        return uvloop.run(look(self.data, self.config))

    def restore(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(self.base, self.data)

    def run(self, case: Case) -> list[str]:
        """What is wrong when this is done to the folder."""
        self.restore()
        case.apply(self.data)
        try:
            found = uvloop.run(look(self.data, self.config))
        except BaseException as problem:
            return [f"it does not start: {problem!r}"]
        return list(self.judge.problems(case, found, self.data))

    def batch(self, batch: list[Case]) -> Iterator[tuple[Case, list[str]]]:
        """Each case with what is wrong; a process that dies is a finding of the case."""
        todo = list(batch)
        while todo:
            answers, say = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(answers)
                self.work(todo, say)
            os.close(say)
            with os.fdopen(answers, "rb") as lines:
                ended = True
                for case in list(todo):
                    ready = select.select([lines], [], [], CASE_S)[0]
                    line = lines.readline() if ready else b""
                    todo.pop(0)
                    if not line:
                        ended = False
                        yield case, [self.death(child, bool(ready))]
                        break
                    yield case, json.loads(line)
                if ended:
                    os.waitpid(child, 0)

    def death(self, child: int, ended: bool) -> str:
        if not ended:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return f"the process ended with {code}" if ended else "it hangs"

    def work(self, batch: list[Case], say: int) -> None:
        """Never returns."""
        try:
            with Path(os.devnull).open("wb") as nothing:
                os.dup2(nothing.fileno(), 2)
            for case in batch:
                os.write(say, json.dumps(self.run(case)).encode() + b"\n")
        finally:
            os._exit(0)


def run(seed: int, minutes: float, kept: Path, *, case: str = "") -> report.Row:
    """The part. `case`: this one alone, as a finding names it."""
    folder = scratch()
    end = time.monotonic() + 60 * min(minutes, MINUTES_MAX)
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()  # findings that differ in numbers alone are one kind
    findings: list[str] = []
    try:
        with Faults(folder) as faults, Spawner(faults.environment) as spawner:
            base = asyncio.run(make(spawner, faults, folder))
        bench = Bench(folder, base)
        every = cases(base, random.Random(f"damage {seed}"))
        if case:
            every = [one for one in every if str(one) == case]
        reported, done = time.monotonic(), 0
        for start in range(0, len(every), CASES_OF_A_WORKER):
            for one, problems in bench.batch(every[start : start + CASES_OF_A_WORKER]):
                done += 1
                counts[one.kind] += 1
                if problems:
                    counts["findings"] += 1
                    text = f"{one}: {'; '.join(problems)}"
                    kind = re.sub(r"bit \d |0x\w+|\d+|\(byte.*?\)|`[^`]*`", "", text)
                    kinds[kind] += 1
                    if kinds[kind] == 1 and len(findings) < FINDINGS_MAX:
                        findings.append(text)
                        print(f"bytes: FINDING: {text}", flush=True)
                if time.monotonic() > reported + REPORT_S:
                    reported = time.monotonic()
                    print(
                        f"bytes: {done} of {len(every)} cases, {counts['findings']} findings",
                        flush=True,
                    )
                if time.monotonic() > end:
                    break
            if time.monotonic() > end:
                break
        for number, text in enumerate(findings):
            findings[number] = f"{list(kinds.values())[number]} times: {text}"
        if findings:
            place = kept / f"bytes-{seed}"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(base, place)
            findings.append(f"the folder is kept in {place}")
        size = sum(path.stat().st_size for path in base.rglob("*") if path.is_file())
        files = sum(path.is_file() for path in base.rglob("*"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report.Row(
        "bytes",
        f"every byte of a data folder ({files} files, {size} bytes) flipped in one bit and in all,"
        " and every file cut to every length",
        f"{done} of {len(every)} cases ({counts['flip']} flips of a bit, {counts['invert']} of a"
        f" byte, {counts['cut']} cuts): {counts['findings']} findings",
        f"make campaign PARTS=bytes MINUTES={minutes:g} SEED={seed}",
        findings,
    )
