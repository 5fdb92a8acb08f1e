"""Who has which topics and channels, in memory, with the encoded answers to /lookup.

An answer is kept until something in it changes, or until the moment at which a node in it falls
silent for too long or a tombstone is lifted. Source: nsqlookupd/registration_db.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

_FOREVER: Final = 1 << 63


@dataclass(eq=False, slots=True)
class Node:
    """One nsqd that is connected."""

    id: str  # its end of the connection
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    hostname: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    seen_ns: int = 0  # its last PING or IDENTIFY
    topics: dict[str, None] = field(default_factory=dict)
    channels: dict[tuple[str, str], None] = field(default_factory=dict)

    def page(self) -> dict[str, Any]:
        """As /lookup shows it."""
        return {
            "remote_address": self.id,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
            "topology_zone": self.topology_zone,
            "topology_region": self.topology_region,
        }


@dataclass(eq=False, slots=True)
class Topic:
    """One topic, and when each of its nodes was tombstoned (0 = it is not)."""

    nodes: dict[Node, int] = field(default_factory=dict)
    channels: dict[str, dict[Node, None]] = field(default_factory=dict)
    answer: bytes | None = None
    good_until_ns: int = 0


class Registry:
    """All of it; times are monotonic nanoseconds from `now_ns`."""

    def __init__(
        self, now_ns: Callable[[], int], inactive_after_ns: int, tombstone_for_ns: int
    ) -> None:
        self.now_ns = now_ns
        self.inactive_after_ns = inactive_after_ns
        self.tombstone_for_ns = tombstone_for_ns
        self.topics: dict[str, Topic] = {}
        # Channels can outlive their topic's key: deleting one names one category only.
        self.nodes: dict[Node, None] = {}

    # --- nodes

    def join(self, node: Node) -> None:
        """It has introduced itself."""
        node.seen_ns = self.now_ns()
        self.nodes[node] = None

    def ping(self, node: Node) -> None:
        """It is alive."""
        now_ns = self.now_ns()
        was_silent = now_ns - node.seen_ns > self.inactive_after_ns
        node.seen_ns = now_ns
        if was_silent:
            for name in node.topics:
                self.topics[name].answer = None

    def leave(self, node: Node) -> None:
        """It is gone; topics and channels stay."""
        for name, channel in list(node.channels):
            self.unregister_channel(node, name, channel, gone=True)
        for name in list(node.topics):
            self._drop(node, name)
        self.nodes.pop(node, None)

    def is_active(self, node: Node) -> bool:
        """It was heard of lately."""
        return self.now_ns() - node.seen_ns <= self.inactive_after_ns

    # --- registrations

    def create(self, name: str, channel: str = "") -> None:
        """Let a topic, and maybe a channel of it, exist without a node."""
        topic = self.topics.setdefault(name, Topic())
        if channel and channel not in topic.channels:
            topic.channels[channel] = {}
            topic.answer = None

    def register(self, node: Node, name: str, channel: str = "") -> bool:
        """True when that is news."""
        topic = self.topics.setdefault(name, Topic())
        known = node in topic.nodes and (not channel or node in topic.channels.get(channel, ()))
        if known:
            return False
        if channel:
            topic.channels.setdefault(channel, {})[node] = None
            node.channels[name, channel] = None
        topic.nodes.setdefault(node, 0)
        node.topics[name] = None
        topic.answer = None
        return True

    def unregister_channel(
        self, node: Node, name: str, channel: str, *, gone: bool = False
    ) -> None:
        """The node has it no more; a channel that was to be short-lived goes with its last node."""
        node.channels.pop((name, channel), None)
        topic = self.topics.get(name)
        holders = None if topic is None else topic.channels.get(channel)
        if topic is None or holders is None:
            return
        holders.pop(node, None)
        if not holders and channel.endswith("#ephemeral") and not gone:
            del topic.channels[channel]
        topic.answer = None

    def unregister(self, node: Node, name: str) -> None:
        """The node has the topic no more, nor any channel of it."""
        for topic_name, channel in list(node.channels):
            if topic_name == name:
                self.unregister_channel(node, name, channel, gone=True)
        self._drop(node, name)
        topic = self.topics.get(name)
        if topic is not None and not topic.nodes and name.endswith("#ephemeral"):
            del self.topics[name]

    def _drop(self, node: Node, name: str) -> None:
        node.topics.pop(name, None)
        topic = self.topics.get(name)
        if topic is not None:
            topic.nodes.pop(node, None)
            topic.answer = None

    def delete(self, name: str) -> None:
        """Forget a topic and its channels until a node names it again."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        for node in topic.nodes:
            node.topics.pop(name, None)
        for channel, holders in topic.channels.items():
            for node in holders:
                node.channels.pop((name, channel), None)

    def delete_channel(self, name: str, channel: str) -> bool:
        """Forget a channel; False when there is none."""
        topic = self.topics.get(name)
        if topic is None or channel not in topic.channels:
            return False
        for node in topic.channels.pop(channel):
            node.channels.pop((name, channel), None)
        topic.answer = None
        return True

    def tombstone(self, name: str, address: str) -> None:
        """Do not give out a node (HOST:HTTP_PORT) for this topic for a while."""
        topic = self.topics.get(name)
        if topic is None:
            return
        for node in topic.nodes:
            if f"{node.broadcast_address}:{node.http_port}" == address:
                topic.nodes[node] = self.now_ns()
                topic.answer = None

    # --- answers

    def is_tombstoned(self, topic: Topic, node: Node) -> bool:
        """It is not given out for this topic."""
        at = topic.nodes.get(node, 0)
        return at != 0 and self.now_ns() - at < self.tombstone_for_ns

    def lookup(self, name: str) -> bytes | None:
        """The body of /lookup; None when there is no such topic."""
        topic = self.topics.get(name)
        if topic is None:
            return None
        if topic.answer is None or self.now_ns() >= topic.good_until_ns:
            topic.answer = self._encode(topic)
        return topic.answer

    def _encode(self, topic: Topic) -> bytes:
        now_ns, until_ns, found = self.now_ns(), _FOREVER, []
        for node, tombstoned_ns in topic.nodes.items():
            silent_ns = node.seen_ns + self.inactive_after_ns + 1
            if now_ns >= silent_ns:
                continue  # when it is heard of again the answer is made anew
            if tombstoned_ns and now_ns < tombstoned_ns + self.tombstone_for_ns:
                until_ns = min(until_ns, tombstoned_ns + self.tombstone_for_ns)
                continue
            until_ns = min(until_ns, silent_ns)
            found.append(node.page())
        topic.good_until_ns = until_ns
        return orjson.dumps({"channels": sorted(topic.channels), "producers": found})

    def node_pages(self) -> Iterator[dict[str, Any]]:
        """As /nodes shows them: active ones, with tombstones beside their topics."""
        for node in self.nodes:
            if self.is_active(node):
                topics = sorted(node.topics)
                tombstones = [self.is_tombstoned(self.topics[name], node) for name in topics]
                yield {**node.page(), "tombstones": tombstones, "topics": topics}
