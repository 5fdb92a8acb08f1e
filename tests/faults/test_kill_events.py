"""Delivery events of NSQ channels and durables alike, through clean ends and kill -9."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.clients.http import request
from support.clients.nsq import MESSAGE, Wire, body
from support.delivery_events import Event, read_events
from support.stan.client import StanClient

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

DEADLINE_S = 20.0
COUNT = 200
CONFIG = """
[events]
topic = "deliveries"
linger = "{linger}"
[stan]
enabled = true
[storage]
segment_size = "64KiB"
[[storage.topic]]
pattern = "work"
max_attempts = 2
"""


def fill(server: Server, count: int) -> None:
    lines = b"\n".join(b"%d" % number for number in range(count))
    assert request(server.nsq_http, "POST", "/mpub", lines, topic="work").status == 200


def consume(server: Server, count: int) -> None:
    """Finish so many messages; each tenth is given back once, each twentieth twice."""
    left, dead = count, count // 20
    with Wire(server.nsq) as wire:
        wire.send(b"SUB work ch\nRDY 10\n")
        while left > dead:
            kind, data = wire.frame()
            if kind != MESSAGE or data == b"_heartbeat_":
                continue
            number, attempt, name = int(data[26:]), data[9], data[10:26]
            if number % 20 == 0 or (number % 10 == 0 and attempt == 1):
                wire.send(b"REQ %s 0\n" % name)
                continue
            wire.send(b"FIN %s\n" % name)
            left -= 1


def event_count(server: Server) -> int:
    """Events that are in their log, says the broker."""
    page = request(server.monitor, "GET", "/metrics").body.decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "twinwire_delivery_events_total":
                return int(sample.value)
    raise AssertionError("no such series")


def await_events(server: Server, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while event_count(server) < count:
        assert time.monotonic() < deadline, f"{event_count(server)} of {count} events"


def events_of(server: Server, count: int) -> list[Event]:
    """The first events of the log, at least so many."""
    found: list[Event] = []
    with Wire(server.nsq) as wire:
        wire.send(b"SUB deliveries look\nRDY 100\n")
        while len(found) < count:
            kind, data = wire.frame()
            if kind == MESSAGE:
                found += read_events(data[26:]).events
                wire.send(b"FIN %s\n" % data[10:26])
    return found


@pytest.mark.parametrize("linger", ["off", "20ms"])
def test_what_is_written_stays_written(start_broker: StartBroker, linger: str) -> None:
    server = start_broker(CONFIG.format(linger=linger))
    assert request(server.nsq_http, "POST", "/channel/create", topic="work", channel="ch").status
    written = 0
    expected = COUNT + COUNT // 20 + COUNT // 10  # a fin or a dead each, and what came back
    for _ in range(3):
        fill(server, COUNT)
        consume(server, COUNT)
        await_events(server, expected)
        written += expected
        server.kill()
        server.start()
    found = [event for event in events_of(server, written) if event.topic == "work"]
    assert len(found) == written
    assert {event.channel for event in found} == {"ch"}
    for round_ in range(3):
        ours = found[round_ * expected : (round_ + 1) * expected]
        first = round_ * COUNT + 1
        ended = [event for event in ours if event.event in ("fin", "dead")]
        assert sorted(event.seq for event in ended) == list(range(first, first + COUNT))
        assert sum(event.event == "dead" for event in ours) == COUNT // 20
        assert {event.reason for event in ours if event.event == "dead"} == {"requeue"}
        for event in ours:
            came_back = (event.seq - first) % 10 == 0
            assert event.attempt == 1 + (came_back and event.event != "requeue") or came_back
            assert 0 <= event.latency_ns < DEADLINE_S * 1e9
    assert server.stop() == 0


def test_a_clean_end_writes_what_is_gathered(start_broker: StartBroker) -> None:
    server = start_broker(CONFIG.format(linger="1m"))
    with StanClient(server) as stan:  # type: ignore[arg-type]
        durable = stan.subscribe("notes", durable="d", max_in_flight=3)
        stan.fill("notes", 3)
        assert durable.take(3) == [1, 2, 3]
        durable.ack(1, 3)
        stan.fill("notes", 1)  # answered behind the acks
        group = stan.subscribe("notes", queue="q", start=4)
        assert group.take(3, ack=True) == [1, 2, 3]
        stan.fill("notes", 1)
    with Wire(server.nsq) as wire:
        wire.send(body(b"PUB work", b"0"))
    assert event_count(server) == 0
    assert server.stop() == 0
    server.start()
    found = events_of(server, 6)
    assert {event.topic for event in found} == {"notes"}
    names = sorted({event.channel for event in found})
    assert len(names) == 2
    acked = [[e.seq for e in found if e.channel == n and e.event == "fin"] for n in names]
    assert sorted(acked) == [[1, 2, 3], [1, 3]]
    assert server.stop() == 0


def test_without_a_topic_there_is_no_log(start_broker: StartBroker) -> None:
    server = start_broker('[events]\ntopic = ""\n')
    fill(server, 10)
    assert event_count(server) == 0
    topics = request(server.nsq_http, "GET", "/stats", format="json").json["topics"]
    assert [topic["topic_name"] for topic in topics] == ["work"]
    assert server.stop() == 0
