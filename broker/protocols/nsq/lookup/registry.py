"""The registry of nsqlookupd: which producer registered which topics and channels.

A key is (category, key, subkey): ("client", "", ""), ("topic", t, "") or ("channel", t, c). Keys
stay after their last producer leaves, unless their name ends in #ephemeral. Everything is in
memory. The caller passes in the time: monotonic nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from broker.base.units import COUNT_MAX
from broker.protocols.nsq import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

_EPHEMERAL = "#ephemeral"


class Producer:
    """One connected peer that has sent IDENTIFY."""

    __slots__ = ("encoded", "entries", "fields", "id", "node", "seen_ns", "topics")

    def __init__(self, name: str, fields: dict[str, Any], now_ns: int) -> None:
        """`fields`: in the form of /lookup; `name`: the remote address."""
        self.id = name
        self.fields = fields
        self.encoded = orjson.Fragment(orjson.dumps(fields))
        self.node = f"{fields['broadcast_address']}:{fields['http_port']}"
        self.seen_ns = now_ns
        self.entries: dict[Entry, None] = {}
        self.topics: dict[str, dict[Entry, None]] = {}  # the same by topic, channels first


class Entry:
    """One key with its producers."""

    __slots__ = ("category", "key", "producers", "subkey")

    def __init__(self, category: str, key: str, subkey: str = "") -> None:
        self.category = category
        self.key = key
        self.subkey = subkey
        self.producers: dict[Producer, int] = {}  # producer -> end of its tombstone, 0 = none

    @property
    def ephemeral(self) -> bool:
        """Whether the key is removed with its last producer."""
        return (self.subkey or self.key).endswith(_EPHEMERAL)


class Registry:
    """All keys and producers, and encoded answers to /lookup."""

    def __init__(self, inactive_ns: int, tombstone_ns: int) -> None:
        self.inactive_ns = inactive_ns
        self.tombstone_ns = tombstone_ns
        self.clients = Entry("client", "")
        self.topics: dict[str, Entry] = {}
        self.channels: dict[str, dict[str, Entry]] = {}  # topic -> channel -> entry
        self._answers: dict[str, tuple[bytes, int]] = {}  # topic -> answer, valid until
        self._answers_bytes = 0

    # --- producers

    def join(self, producer: Producer) -> None:
        """Add a producer after its IDENTIFY."""
        _link(self.clients, producer)

    def leave(self, producer: Producer) -> Iterator[Entry]:
        """Remove a producer after its connection ended: each step removes a registration and
        returns it. The first one is that of the producer itself."""
        for entry in list(producer.entries):
            if self._unlink(entry, producer):
                yield entry

    def ping(self, producer: Producer, now_ns: int) -> None:
        """Note a PING."""
        if not self._active(producer, now_ns):
            self._forget_answers()  # of all topics that did not list it while it was inactive
        producer.seen_ns = now_ns

    def register(self, producer: Producer, topic: str, channel: str = "") -> list[Entry]:
        """Register a topic and, if given, a channel; returns the new registrations."""
        entries = [self._channel(topic, channel)] if channel else []
        entries.append(self._topic(topic))
        new = [entry for entry in entries if _link(entry, producer)]
        if new:
            self._forget_answer(topic)
        return new

    def unregister(self, producer: Producer, topic: str, channel: str = "") -> list[Entry]:
        """Remove registrations, for a topic with all its channels; returns them."""
        known = self.channels.get(topic, {})
        if channel:
            found = [known[channel]] if channel in known else []
        else:
            # only its own channels: other producers may have any number of them
            found = list(producer.topics.get(topic, ()))
        return [entry for entry in found if self._unlink(entry, producer)]

    def tombstone(self, topic: str, node: str, now_ns: int) -> None:
        """Hide the producer at `node` (address:http_port) from this topic for a while."""
        entry = self.topics.get(topic)
        for producer in entry.producers if entry is not None else ():
            if entry is not None and producer.node == node:
                entry.producers[producer] = now_ns + self.tombstone_ns
        self._forget_answer(topic)

    # --- keys

    def add(self, topic: str, channel: str = "") -> None:
        """Create the key of a topic, or of a channel and its topic, without producers."""
        self._topic(topic)
        if channel:
            self._channel(topic, channel)

    def remove_topic(self, topic: str) -> list[Entry]:
        """Remove a topic and its channels, with all their registrations."""
        removed = list(self.channels.get(topic, {}).values())
        if topic in self.topics:
            removed.append(self.topics[topic])
        for entry in removed:
            self._drop(entry)
        return removed

    def remove_channel(self, topic: str, channel: str) -> bool:
        """Remove a channel; False if it does not exist."""
        entry = self.channels.get(topic, {}).get(channel)
        if entry is not None:
            self._drop(entry)
        return entry is not None

    def _topic(self, topic: str) -> Entry:
        entry = self.topics.get(topic)
        if entry is None:
            entry = self.topics[topic] = Entry("topic", topic)
        return entry

    def _channel(self, topic: str, channel: str) -> Entry:
        known = self.channels.setdefault(topic, {})
        entry = known.get(channel)
        if entry is None:
            entry = known[channel] = Entry("channel", topic, channel)
            self._forget_answer(topic)
        return entry

    def _unlink(self, entry: Entry, producer: Producer) -> bool:
        if entry.producers.pop(producer, None) is None:
            return False
        _forget(entry, producer)
        if entry is not self.clients:
            self._forget_answer(entry.key)
            if entry.ephemeral and not entry.producers:
                if entry.category == "topic":
                    self.remove_topic(entry.key)
                else:
                    self._drop(entry)
        return True

    def _drop(self, entry: Entry) -> None:
        for producer in entry.producers:
            _forget(entry, producer)
        entry.producers.clear()
        if entry.category == "topic":
            self.topics.pop(entry.key, None)
        else:
            known = self.channels.get(entry.key, {})
            known.pop(entry.subkey, None)
            if not known:
                self.channels.pop(entry.key, None)
        self._forget_answer(entry.key)

    # --- queries

    def entries(self) -> Iterator[Entry]:
        """Every key."""
        yield self.clients
        yield from self.topics.values()
        for known in self.channels.values():
            yield from known.values()

    def channel_names(self, topic: str) -> list[str]:
        """The sorted names; an unknown topic has none."""
        return sorted(self.channels.get(topic, ()))

    def producers(self, topic: str, now_ns: int) -> list[Producer] | None:
        """Active producers of a topic without tombstone; None if the topic is unknown."""
        entry = self.topics.get(topic)
        if entry is None:
            return None
        alive_ns = now_ns - self.inactive_ns
        return [
            producer
            for producer, until_ns in entry.producers.items()
            if producer.seen_ns >= alive_ns and until_ns <= now_ns
        ]

    def nodes(self, now_ns: int) -> list[dict[str, Any]]:
        """Every active producer with its topics, and which of them have a tombstone."""
        found = []
        for producer in self.clients.producers:
            if not self._active(producer, now_ns):
                continue
            topics = [entry for entry in producer.entries if entry.category == "topic"]
            marks = [entry.producers[producer] > now_ns for entry in topics]
            names = [entry.key for entry in topics]
            found.append({**producer.fields, "tombstones": marks, "topics": names})
        return found

    def lookup(self, topic: str, now_ns: int) -> bytes | None:
        """The body of /lookup; cached until a registration changes or a time passes."""
        kept = self._answers.get(topic)
        if kept is not None and now_ns < kept[1]:
            return kept[0]
        producers = self.producers(topic, now_ns)
        if producers is None:
            return None
        body = orjson.dumps(
            {
                "channels": self.channel_names(topic),
                "producers": [producer.encoded for producer in producers],
            }
        )
        self._forget_answer(topic)
        while self._answers and self._answers_bytes + len(body) > limits.NSQ_LOOKUP_CACHE_BYTES:
            self._forget_answer(next(iter(self._answers)))
        self._answers[topic] = body, self._good_until_ns(self.topics[topic], producers, now_ns)
        self._answers_bytes += len(body)
        return body

    def _good_until_ns(self, entry: Entry, producers: list[Producer], now_ns: int) -> int:
        """When the first producer becomes inactive, or the first tombstone ends."""
        silent = (producer.seen_ns + self.inactive_ns + 1 for producer in producers)
        marks = (until_ns for until_ns in entry.producers.values() if until_ns > now_ns)
        return min((*silent, *marks), default=COUNT_MAX)

    def _active(self, producer: Producer, now_ns: int) -> bool:
        return now_ns - producer.seen_ns <= self.inactive_ns

    def _forget_answer(self, topic: str) -> None:
        kept = self._answers.pop(topic, None)
        if kept is not None:
            self._answers_bytes -= len(kept[0])

    def _forget_answers(self) -> None:
        self._answers.clear()
        self._answers_bytes = 0


def _link(entry: Entry, producer: Producer) -> bool:
    if producer in entry.producers:
        return False
    entry.producers[producer] = 0
    producer.entries[entry] = None
    producer.topics.setdefault(entry.key, {})[entry] = None
    return True


def _forget(entry: Entry, producer: Producer) -> None:
    """Remove a registration from the producer's own index."""
    producer.entries.pop(entry, None)
    own = producer.topics.get(entry.key)
    if own is not None:
        own.pop(entry, None)
        if not own:
            del producer.topics[entry.key]
