"""The answers that clients got before a power cut: what must exist afterwards."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from broker.engine.cursor.journal import read_journal
from powercut import sources
from powercut.history import END, FDATASYNC, FSYNC, History
from powercut.stream_ledger import StreamLedger

SYNCED = ("always.", "few.", "kept.", "s.", "small.", "all.")  # what an answer for is on the disk
KEPT = {"few.": 40, "small.": 30}  # at least so many of the last ones, whatever the limits
_JOURNAL = re.compile(r"logs/([^/]+)/cursors/([^/]+)\.cur$")
_ACK, _NEXT, _ENTRY, _FLOOR, _PAUSE = range(1, 6)  # operations of a journal


@dataclass
class Topic:
    """One log of any protocol."""

    asked: dict[int, int] = field(default_factory=dict)  # number -> when its publish was begun
    stored: dict[int, int] = field(default_factory=dict)  # and when it was answered
    channels: dict[str, int] = field(default_factory=dict)  # and when they were answered
    finished: dict[str, set[int]] = field(default_factory=dict)
    durables: dict[str, int] = field(default_factory=dict)
    settled: dict[str, set[int]] = field(default_factory=dict)  # acknowledged by durables
    read: dict[int, int | None] = field(default_factory=dict)  # seq -> number, given to readers
    lasting: set[int] = field(default_factory=set)  # answered longer ago than the period
    seen: dict[int, int | None] = field(default_factory=dict)  # seq -> number, given to clients
    synced_acks: dict[str, Acks] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)  # for one channel only
    unordered: set[int] = field(default_factory=set)  # rows of commits: lost ones come at the end
    gone_channels: set[str] = field(default_factory=set)  # their deletion was answered
    paused: bool = False  # it was, and the answer has come
    made: bool = False  # without a message: its creation was answered
    # Channels whose creation, or pause, an operator asked for and was answered.
    made_channels: set[str] = field(default_factory=set)
    paused_channels: set[str] = field(default_factory=set)
    deleted: int = -1  # when that was asked for
    gone: int = -1  # and when it was answered

    def take_order(self, event: str, channel: str) -> None:
        """What an operator did to the topic or to one of its channels."""
        match event:
            case "made":
                self.made = True
            case "cmade":
                self.made_channels.add(channel)
            case "pause" | "unpause-ask":
                self.paused = event == "pause"
            case "cpause":
                self.paused_channels.add(channel)
            case "cunpause-ask":
                self.paused_channels.discard(channel)


@dataclass
class Acks:
    """Messages that a synced journal lists as finished."""

    floor: int = 0
    seqs: frozenset[int] = frozenset()

    def __contains__(self, seq: int) -> bool:
        return seq < self.floor or seq in self.seqs


@dataclass
class Commit:
    """One requested commit."""

    named: dict[str, list[tuple[int, str, int]]]
    numbers: dict[str, list[int]]
    answered: bool = False


@dataclass
class Place:
    """The position of a bulk reader in one log."""

    seq: int
    number: int  # of the record there, or of one before those that will be


@dataclass
class Reader:
    """The requests and answers of a bulk reader."""

    hold: bool
    places: dict[str, Place]

    def seqs(self) -> dict[str, int]:
        """By topic."""
        return {topic: place.seq for topic, place in self.places.items()}


@dataclass
class Import:
    """One folder to import."""

    folder: str
    done: bool = False


@dataclass
class Ledger:
    """The whole ledger, at one position."""

    topics: dict[str, Topic] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)
    commits: dict[tuple[str, int], Commit] = field(default_factory=dict)
    # What a reader may be: what was answered last, and what was asked for since. None = no reader.
    readers: dict[str, list[Reader | None]] = field(default_factory=dict)
    streams: dict[str, StreamLedger] = field(default_factory=dict)
    clock: int = 0

    def topic(self, name: str) -> Topic:
        return self.topics.setdefault(name, Topic())

    def take(self, mark: dict[str, Any]) -> None:
        """Apply one line."""
        self.clock += 1
        if "s" in mark:
            self.streams.setdefault(mark["s"], StreamLedger()).take(mark)
        else:
            self._take(mark)

    def _take(self, mark: dict[str, Any]) -> None:
        event, now = mark["e"], self.clock
        topic = self.topic(mark["t"]) if "t" in mark else Topic()
        match event:
            case "ask":
                for number in mark["n"]:
                    topic.asked[number] = now
            case "ok":
                for number in mark["n"]:
                    topic.stored[number] = now
            case "chan":
                topic.channels.setdefault(mark["c"], now)
                topic.gone_channels.discard(mark["c"])
            case "chan-ask":
                topic.gone_channels.discard(mark["c"])
            case "cdel":
                topic.gone_channels.add(mark["c"])
            case "own":
                topic.own |= set(mark["n"])
            case "cdel-ask":
                topic.channels.pop(mark["c"], None)
                topic.finished.pop(mark["c"], None)
                topic.synced_acks.pop(mark["c"], None)
                topic.made_channels.discard(mark["c"])
                topic.paused_channels.discard(mark["c"])
            case "made" | "cmade" | "pause" | "unpause-ask" | "cpause" | "cunpause-ask":
                topic.take_order(event, mark.get("c", ""))
            case "fin":
                topic.finished.setdefault(mark["c"], set()).update(mark["n"])
            case "del-ask":
                asked = topic.asked
                self.topics[mark["t"]] = Topic(asked=asked, deleted=now)
            case "durable":
                topic.durables.setdefault(mark["d"], now)
            case "durable-gone":
                topic.durables.pop(mark["d"], None)
            case "sack":
                topic.settled.setdefault(mark["d"], set()).update(mark["n"])
            case "read":
                topic.read.update((seq, number) for seq, number in mark["pairs"])
            case "period":
                for name in mark["topics"]:
                    self.topic(name).lasting |= set(self.topic(name).stored)
            case "seen":
                topic.seen.update((seq, number) for seq, number in mark["pairs"])
            case "commit-ask":
                named = {t: [(p, a, n) for p, a, n in rows] for t, rows in mark["named"].items()}
                self.commits[mark["w"], mark["epoch"]] = Commit(named, mark["numbers"])
                for name, numbers in mark["numbers"].items():
                    self.topic(name).unordered |= set(numbers)
            case "import-ask":
                self.imports[mark["kind"]] = Import(mark["folder"])
                for line in sources.asked(mark["kind"]):
                    self.take(line)
            case "import":
                self.imports[mark["kind"]].done = True
                for line in sources.answered(mark["kind"]):
                    self.take(line)
            case "reader-ask" | "reader-gone-ask" | "reader":
                self.take_reader(mark)
            case "del":
                topic.gone = now
            case "commit":
                commit = self.commits[mark["w"], mark["epoch"]]
                commit.answered = True
                for name, numbers in commit.numbers.items():
                    self.topic(name).stored.update((number, now) for number in numbers)

    def take_reader(self, mark: dict[str, Any]) -> None:
        may_be = self.readers.setdefault(mark["r"], [None])
        match mark["e"]:
            case "reader-ask":
                places = {topic: Place(*place) for topic, place in mark["places"].items()}
                may_be.append(Reader(mark["hold"], places))
            case "reader-gone-ask":
                may_be.append(None)
            case "reader":
                del may_be[:-1]

    # --- what has to be there

    def required(self, name: str) -> set[int]:
        """Messages that must not be lost, apart from those held by readers."""
        topic = self.topics[name]
        found = {n for n in topic.read.values() if n is not None} | topic.lasting
        if name.startswith(SYNCED):
            found |= set(topic.stored)
        for commit in self.commits.values():
            if commit.answered:
                found.update(commit.numbers.get(name, ()))
        return self._within_limits(name, found)

    def _within_limits(self, name: str, found: set[int]) -> set[int]:
        for prefix, count in KEPT.items():
            if name.startswith(prefix):
                order = sorted(self.topics[name].asked.items(), key=lambda item: item[1])
                last = {number for number, _ in order[-count:]}
                # of one window nobody knows the order
                return found & last if len(order) > count else found
        return found

    def common(self, name: str) -> set[int]:
        """Messages that every new reader gets."""
        return self.required(name) - self.topics[name].own

    def held(self, name: str) -> set[int]:
        """Records of a log with one publisher that readers hold at any possible position."""
        found: set[int] = set()
        for may_be in self.readers.values():
            places = [
                reader.places.get(name) if reader is not None and reader.hold else None
                for reader in may_be
            ]
            if None not in places:
                first = max(place.number for place in places if place is not None)
                found |= {n for n in self.topics[name].stored if n >= first}
        return found

    def owed(self, name: str, channel: str) -> set[int]:
        """Messages that a channel must still get: published after its creation, not finished."""
        topic = self.topics[name]
        since = topic.channels[channel]
        done = topic.finished.get(channel, set())
        return {n for n in self.required(name) - done if topic.asked[n] > since}

    def owed_durable(self, name: str, durable: str) -> set[int]:
        """All messages of the channel, because these durables request all."""
        return self.required(name) - self.topics[name].settled.get(durable, set())


class Answers:
    """The ledger of a history at any position."""

    def __init__(self, history: History, before: Ledger | None = None) -> None:
        self.history = history
        self.before = before
        self.acks = list(_synced_acks(history))

    def at(self, cut: int) -> Ledger:
        """The ledger at a position."""
        ledger = _copy(self.before) if self.before is not None else Ledger()
        acks = iter(self.acks)
        ack = next(acks, None)
        for at in self.history.marks:
            if at >= cut:
                break
            while ack is not None and ack[0] < at:
                _note(ledger, *ack[1:])
                ack = next(acks, None)
            mark = self.history.ops[at].mark
            assert mark is not None
            ledger.take(mark)
        while ack is not None and ack[0] < cut:
            _note(ledger, *ack[1:])
            ack = next(acks, None)
        return ledger


def _copy(ledger: Ledger) -> Ledger:
    import copy

    return copy.deepcopy(ledger)


def _note(ledger: Ledger, name: str, channel: str, acks: Acks) -> None:
    if name in ledger.topics and channel in ledger.topics[name].channels:
        ledger.topics[name].synced_acks[channel] = acks


def _synced_acks(history: History) -> Any:
    """(position, log, cursor, acks) of every journal that has been synced, from when its name is
    on the disk as well."""
    named = {
        change.node: change.durable_at
        for at in history.named
        for change in history.ops[at].changes
        if change.node is not None
    }
    found = []
    for at, op in enumerate(history.ops):
        if op.kind in (FSYNC, FDATASYNC) and op.phase == END and not op.failed:
            match = _JOURNAL.search(op.path)
            if match is None or "stan%3A" in match[2]:
                continue
            acks = _acks_in(bytes(history.content_at(op.node, op.begun)))
            found.append(
                (max(at, named.get(op.node, 0)), unquote(match[1]), unquote(match[2]), acks)
            )
    return sorted(found, key=lambda each: each[0])


def _acks_in(data: bytes) -> Acks:
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        file.write(data)
        file.flush()
        ops, _, _ = read_journal(file.name)
    floor, seqs = 0, set()
    for kind, a, b, _ in ops:
        if kind == _FLOOR:
            floor, seqs = a, set()
        elif kind == _ACK:
            seqs.update(range(a, a + b))
    return Acks(floor, frozenset(seqs))
