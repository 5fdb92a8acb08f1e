"""The bulk API over its socket: what there is, places by time, ranges, and what is refused."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from conftest import BrokerFor, StartBroker
from support import Server
from support.clients.bulk import BulkClient, read_frame
from support.clients.http import nsq_topic, request
from support.clients.nats import NatsClient

from broker.base.units import MS
from broker.bulk import limits

cramjam = pytest.importorskip("cramjam")
pytestmark = pytest.mark.only_ours

OTHER = "0" * 32


def publish(server: Server, topic: str, bodies: list[bytes]) -> None:
    many = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    raw = len(bodies).to_bytes(4, "big") + many
    assert request(server.nsq_http, "POST", "/mpub", raw, topic=topic, binary="true").body == b"OK"


def numbered(count: int, start: int = 0, size: int = 30) -> list[bytes]:
    return [(b"%d:" % number).ljust(size, b".") for number in range(start, start + count)]


@pytest.fixture
def broker(broker_for: BrokerFor) -> Server:
    """What is published can be read at once."""
    return broker_for({"storage": {"sync": "always"}})


@pytest.fixture
def bulk(broker: Server) -> Iterator[BulkClient]:
    with BulkClient(broker.bulk) as client:
        yield client


def test_what_there_is(broker: Server, bulk: BulkClient, uniq: str) -> None:
    assert bulk.ask("GET", "topics", subscribe=uniq).json["topics"] == []
    publish(broker, uniq, numbered(10))
    found = bulk.await_next(uniq, 11)
    page = bulk.ask("GET", "topics", subscribe=f"{uniq}, nobody").json
    assert page["topics"] == [found]
    assert page["partition"] == 0
    assert len(page["broker_id"]) == 32
    assert found == {
        "topic": uniq,
        "incarnation": bulk.range(uniq, 1).log_id.hex(),
        "first": 1,
        "next": 11,
        "bytes": 64 + 10 * 72,
        "messages": 10,
        "held_from": None,
        "stream": False,
    }


def test_topics_by_pattern(broker: Server, bulk: BulkClient, uniq: str) -> None:
    for name in ("a", "b", "ab"):
        publish(broker, f"{uniq}.{name}", [b"x"])
    for pattern, names in (
        (rf"{uniq}\.[ab]", ["a", "b"]),
        (rf"{uniq}\..*", ["a", "ab", "b"]),
        ("[ab]", []),  # of the whole name
        (rf"{uniq}\.(a|b)*", ["a", "ab", "b"]),
    ):
        found = bulk.ask("GET", "topics", pattern=pattern).json["topics"]
        assert [topic["topic"] for topic in found] == [f"{uniq}.{name}" for name in names]
    assert bulk.ask("GET", "topics", pattern="(").status == 400
    assert bulk.ask("GET", "topics", pattern="a" * 5000).status == 400
    assert bulk.ask("GET", "topics", pattern="a", subscribe="a").status == 400


def test_a_range_is_what_was_published(broker: Server, bulk: BulkClient, uniq: str) -> None:
    bodies = [*numbered(500), b"", b"\xff\x00" * 10, b"x" * 300_000]
    publish(broker, uniq, [body or b"-" for body in bodies])
    bodies = [body or b"-" for body in bodies]
    bulk.await_next(uniq, len(bodies) + 1)
    frame = bulk.range(uniq, 1)
    assert frame.bodies == bodies
    assert frame.gaps == []
    assert bulk.range(uniq, 11, end=21).bodies == bodies[10:20]
    small = bulk.all_of(uniq, 1, len(bodies) + 1, max_bytes=1000)
    assert [body for frame in small for body in frame.bodies] == bodies
    assert len(small) > 30
    assert bulk.range(uniq, len(bodies) + 1).records == []


def test_everything_that_nats_says_is_there(broker: Server, bulk: BulkClient, uniq: str) -> None:
    publish(broker, uniq, [b"first"])
    head = b"NATS/1.0\r\nA: b\r\n\r\n"
    with closing(NatsClient(broker.nats)) as nats:
        nats.pub(uniq, b"body", headers=head)
        nats.ping()
    bulk.await_next(uniq, 3)
    record = bulk.range(uniq, 2).records[0]
    assert (record.headers, record.body, record.subject) == (head, b"body", b"")


def test_names_are_decoded(bulk: BulkClient) -> None:
    answer = bulk.ask("GET", "range/%25%2F%C3%A4%3F%7B%7D", start=1)
    assert (answer.status, answer.json) == (404, {"error": "unknown topic %/ä?{}"})


@pytest.mark.parametrize(
    ("query", "status", "facts"),
    [
        ({}, 400, set()),
        ({"start": "x"}, 400, set()),
        ({"start": "-1"}, 400, set()),
        ({"start": 1, "end": "x"}, 400, set()),
        ({"start": 1, "max_bytes": 0}, 400, set()),
        ({"start": 1, "inc": "x"}, 400, set()),
        ({"start": 1, "inc": OTHER}, 409, {"incarnation"}),
        ({"start": 0}, 410, {"first"}),
        ({"start": 12}, 416, {"next"}),
    ],
)
def test_what_is_refused(
    broker: Server, bulk: BulkClient, uniq: str, query: Any, status: int, facts: set[str]
) -> None:
    publish(broker, uniq, numbered(10))
    known = bulk.await_next(uniq, 11)
    answer = bulk.ask("GET", f"range/{uniq}", **query)
    assert answer.status == status
    assert answer.json.keys() == {"error"} | facts
    for fact in facts:
        assert answer.json[fact] == known[fact]
    assert bulk.range(uniq, 1, inc=known["incarnation"]).next == 11, "the connection is as new"


def test_no_such_thing(bulk: BulkClient) -> None:
    for method, path, status in (
        ("GET", "nothing", 404),
        ("GET", "range/nobody?start=1", 404),
        ("POST", "topics", 405),
        ("DELETE", "offsets", 405),
    ):
        answer = bulk.ask(method, path)
        assert (answer.status, answer.json.keys()) == (status, {"error"})


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topics": 1}', b"{", b'{"topics": {"t": {}}}'])
def test_bodies_that_make_no_sense(bulk: BulkClient, body: bytes) -> None:
    answer = bulk.ask("POST", "offsets", body)
    assert (answer.status, answer.json.keys()) == (400, {"error"})


def test_a_body_that_is_too_large(broker: Server) -> None:
    size = limits.BULK_BODY_BYTES_MAX + 1
    assert request(broker.bulk, "POST", "/bulk/v1/offsets", b" " * size).status == 413


def test_places_by_time(broker: Server, bulk: BulkClient, uniq: str) -> None:
    publish(broker, uniq, numbered(10))
    known = bulk.await_next(uniq, 11)
    middle = bulk.range(uniq, 1).records[-1].timestamp_ns + 1
    while time.time_ns() // MS <= middle // MS + 1:
        pass
    publish(broker, uniq, numbered(10))
    bulk.await_next(uniq, 21)

    def place(**moment: int) -> tuple[int, bool]:
        found = bulk.ask("POST", "offsets", {"topics": {uniq: moment}}).json["topics"][uniq]
        assert found["incarnation"] == known["incarnation"]
        return found["seq"], found["exact"]

    assert place(time_ns=0) == place(time_ms=0) == (1, True)
    assert place(time_ns=middle) == place(time_ms=middle // MS + 1) == (11, True)
    assert place(time_ns=2**62) == place(time_ms=2**62) == (21, False)
    for moment in ({}, {"time_ns": 1, "time_ms": 1}):
        assert bulk.ask("POST", "offsets", {"topics": {uniq: moment}}).status == 400
    assert bulk.ask("POST", "offsets", {"topics": {"nobody": {"time_ns": 1}}}).status == 404


def test_compressed(broker: Server, bulk: BulkClient, uniq: str) -> None:
    publish(broker, uniq, numbered(2000))
    bulk.await_next(uniq, 2001)
    plain = bulk.ask("GET", f"range/{uniq}", start=1)
    assert "content-encoding" not in plain.headers
    zstd = lambda raw: bytes(cramjam.zstd.decompress(raw))  # noqa: E731
    for accepted, encoding, decode in (
        ("zstd", "zstd", zstd),
        ("gzip", "gzip", gzip.decompress),
        ("gzip, zstd", "zstd", zstd),
        ("gzip;q=1.0, zstd;q=0.5", "gzip", gzip.decompress),
    ):
        headers = {"Accept-Encoding": accepted}
        answer = bulk.ask("GET", f"range/{uniq}", headers=headers, start=1)
        assert answer.headers["content-encoding"] == encoding
        assert len(answer.body) < len(plain.body) / 3
        assert decode(answer.body) == plain.body
    for accepted in ("", "br", "zstd;q=0", "identity, zstd;q=0.5", "zstd;q=x"):
        headers = {"Accept-Encoding": accepted}
        answer = bulk.ask("GET", f"range/{uniq}", headers=headers, start=1)
        assert answer.body == plain.body


def test_a_log_in_memory(broker: Server, bulk: BulkClient, uniq: str) -> None:
    topic = f"{uniq}#ephemeral"
    publish(broker, topic, numbered(1000))
    assert bulk.topic(topic)["next"] == 1001
    frames = bulk.all_of(topic, 1, 1001, max_bytes=9000)
    assert [body for frame in frames for body in frame.bodies] == numbered(1000)
    found = bulk.ask("POST", "offsets", {"topics": {topic: {"time_ns": 0}}}).json["topics"][topic]
    assert (found["seq"], found["exact"]) == (1, True)


def test_a_topic_made_anew(broker: Server, bulk: BulkClient, uniq: str) -> None:
    publish(broker, uniq, numbered(10))
    before = bulk.await_next(uniq, 11)["incarnation"]
    request(broker.nsq_http, "POST", "/topic/delete", topic=uniq)
    assert bulk.ask("GET", f"range/{uniq}", start=1).status == 404
    publish(broker, uniq, numbered(3))
    answer = bulk.ask("GET", f"range/{uniq}", start=5, inc=before)
    assert (answer.status, answer.json["incarnation"]) == (409, bulk.topic(uniq)["incarnation"])


def test_trimmed(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker({"storage": {"segment_size": "64KiB"}})
    with BulkClient(server.bulk) as bulk:
        request(server.nsq_http, "POST", "/topic/create", topic=uniq)
        request(server.nsq_http, "POST", "/channel/create", topic=uniq, channel="c")
        for start in range(0, 3000, 100):
            publish(server, uniq, numbered(100, start, size=100))
        bulk.await_next(uniq, 3001)
        assert bulk.topic(uniq)["first"] == 1
        request(server.nsq_http, "POST", "/channel/empty", topic=uniq, channel="c")
        while (first := bulk.topic(uniq)["first"]) == 1:
            pass
        answer = bulk.ask("GET", f"range/{uniq}", start=1)
        assert (answer.status, answer.json["first"]) == (410, first)
        frames = bulk.all_of(uniq, first, 3001)
        assert [body for f in frames for body in f.bodies] == numbered(3001 - first, first - 1, 100)


def test_while_it_is_published(broker: Server, bulk: BulkClient, uniq: str) -> None:
    """A reader that follows at full speed has every record once, in order."""
    total = 60_000

    def fill() -> None:
        for start in range(0, total, 500):
            publish(broker, uniq, numbered(500, start))

    publish(broker, uniq, numbered(0) or [b"0:"])
    writer = threading.Thread(target=fill)
    writer.start()
    bodies: list[bytes] = []
    at = 1
    while at <= total + 1:
        frame = bulk.range(uniq, at)
        bodies += frame.bodies
        at = frame.next
    writer.join()
    assert bodies == [b"0:", *numbered(total)]
    assert nsq_topic(broker.nsq_http, uniq)["message_count"] == total + 1


def test_a_client_that_goes_in_the_middle(broker: Server, bulk: BulkClient, uniq: str) -> None:
    publish(broker, uniq, [b"x" * 900_000 for _ in range(5)])
    bulk.await_next(uniq, 6)
    for _ in range(limits.BULK_RANGES_MAX + 8):
        other = BulkClient(broker.bulk)
        other.link.request("GET", f"/bulk/v1/range/{uniq}?start=1")
        other.close()
    whole = bulk.ask("GET", f"range/{uniq}", start=1)
    assert len(read_frame(whole.body).records) >= 4
    assert json.loads(bulk.ask("GET", "topics", subscribe=uniq).body)["topics"]
