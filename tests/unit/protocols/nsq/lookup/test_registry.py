"""The registry of nsqlookupd, on a clock that the test moves."""

from __future__ import annotations

import orjson
import pytest

from broker.base import units
from broker.protocols.nsq import limits
from broker.protocols.nsq.lookup.registry import Producer, Registry

SECOND = units.SECOND
START = 1_000 * SECOND


def make() -> Registry:
    return Registry(limits.NSQ_LOOKUP_INACTIVE, limits.NSQ_LOOKUP_TOMBSTONE)


def producer(registry: Registry, name: str, now_ns: int = START) -> Producer:
    one = Producer(name, {"broadcast_address": name, "http_port": 1}, now_ns)
    registry.join(one)
    return one


def named(registry: Registry, topic: str, now_ns: int) -> list[str]:
    """Who is named, by the list and by the encoded answer, which must agree."""
    found = [p.id for p in registry.producers(topic, now_ns) or []]
    body = registry.lookup(topic, now_ns)
    assert body is not None
    assert [p["broadcast_address"] for p in orjson.loads(body)["producers"]] == found
    return found


def test_silence_hides_a_producer_and_a_ping_shows_it_again() -> None:
    registry = make()
    a, b = producer(registry, "a"), producer(registry, "b")
    for one in (a, b):
        registry.register(one, "t")
    edge = START + limits.NSQ_LOOKUP_INACTIVE
    registry.ping(b, START + SECOND)
    assert named(registry, "t", edge) == ["a", "b"]
    assert named(registry, "t", edge + 1) == ["b"]
    assert [n["broadcast_address"] for n in registry.nodes(edge + 1)] == ["b"]
    registry.ping(a, edge + 2)
    assert named(registry, "t", edge + 2) == ["a", "b"]


def test_a_tombstone_lasts_its_time_and_is_for_one_topic() -> None:
    registry = make()
    a = producer(registry, "a")
    for topic in ("t", "u"):
        registry.register(a, topic)
    assert named(registry, "t", START) == ["a"]
    registry.tombstone("t", "a:1", START)
    over = START + limits.NSQ_LOOKUP_TOMBSTONE
    assert named(registry, "t", over - 1) == []
    assert named(registry, "u", over - 1) == ["a"]
    node = registry.nodes(over - 1)[0]
    assert dict(zip(node["topics"], node["tombstones"], strict=True)) == {"t": True, "u": False}
    assert named(registry, "t", over) == ["a"]


def test_register_again_does_not_lift_a_tombstone_but_unregister_does() -> None:
    registry = make()
    a = producer(registry, "a")
    registry.register(a, "t")
    registry.tombstone("t", "a:1", START)
    registry.register(a, "t")
    assert named(registry, "t", START) == []
    registry.unregister(a, "t")
    registry.register(a, "t")
    assert named(registry, "t", START) == ["a"]


def test_keys_stay_without_producers_but_ephemeral_ones_vanish() -> None:
    registry = make()
    a = producer(registry, "a")
    registry.register(a, "t", "c")
    registry.register(a, "t", "e#ephemeral")
    registry.register(a, "t#ephemeral", "c")
    registry.unregister(a, "t", "e#ephemeral")
    assert registry.channel_names("t") == ["c"]
    list(registry.leave(a))
    assert sorted(registry.topics) == ["t"]
    assert named(registry, "t", START) == []
    assert registry.channel_names("t") == ["c"]


@pytest.mark.parametrize("how", ["leave", "unregister"])
def test_an_ephemeral_topic_takes_its_channels_with_it(how: str) -> None:
    registry = make()
    a, b = producer(registry, "a"), producer(registry, "b")
    registry.register(a, "t#ephemeral", "c")
    registry.register(b, "t#ephemeral", "c")
    for each in (a, b):
        assert registry.channel_names("t#ephemeral") == ["c"]
        if how == "leave":
            list(registry.leave(each))
        else:
            registry.unregister(each, "t#ephemeral")
    assert registry.channel_names("t#ephemeral") == []
    assert not registry.topics
    assert not registry.channels


def test_a_producer_that_left_is_nowhere() -> None:
    registry = make()
    a = producer(registry, "a")
    registry.register(a, "t", "c")
    list(registry.leave(a))
    assert all(not entry.producers for entry in registry.entries())
    assert not a.entries


def test_deleting_a_topic_takes_its_channels_and_producers() -> None:
    registry = make()
    a = producer(registry, "a")
    registry.register(a, "t", "c")
    assert len(registry.remove_topic("t")) == 2
    assert registry.lookup("t", START) is None
    assert registry.channel_names("t") == []
    assert registry.nodes(START)[0]["topics"] == []


def test_encoded_answers_follow_every_change() -> None:
    registry = make()
    a = producer(registry, "a")
    registry.add("t")
    assert named(registry, "t", START) == []
    registry.register(a, "t")
    assert named(registry, "t", START) == ["a"]
    registry.add("t", "c")
    assert orjson.loads(registry.lookup("t", START) or b"")["channels"] == ["c"]
    registry.remove_channel("t", "c")
    assert orjson.loads(registry.lookup("t", START) or b"")["channels"] == []


def test_encoded_answers_are_bounded() -> None:
    registry = make()
    a = producer(registry, "x" * 10_000)
    count = 2 * limits.NSQ_LOOKUP_CACHE_BYTES // 10_000
    for number in range(count):
        registry.register(a, f"t{number}")
        assert registry.lookup(f"t{number}", START)
    kept = sum(len(body) for body, _ in registry._answers.values())
    assert kept == registry._answers_bytes <= limits.NSQ_LOOKUP_CACHE_BYTES
