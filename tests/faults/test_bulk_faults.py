"""The bulk API where things break: killed brokers, flipped bytes, full disks, slow readers."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import StartBroker
from raw.test_bulk_ranges import numbered, publish
from raw.test_bulk_readers import metric, put
from support import Server
from support.clients.bulk import DAMAGED, MISSING, BulkClient
from support.clients.http import request
from support.clients.lookup import eventually

pytestmark = pytest.mark.only_ours

SMALL = {"storage": {"sync": "always", "segment_size": "64KiB"}}
RECORD = 144  # of a body of 100 bytes
ROUNDS = 3


def segments(server: Server, topic: str) -> list[Path]:
    return sorted((server.data / "logs" / topic).glob("*.seg"))


def channel(server: Server, topic: str) -> None:
    request(server.nsq_http, "POST", "/topic/create", topic=topic)
    request(server.nsq_http, "POST", "/channel/create", topic=topic, channel="c")


def fill(server: Server, topic: str, count: int = 1000) -> None:
    """In portions: one alone never stands in two files."""
    for start in range(0, count, 100):
        publish(server, topic, numbered(100, start, size=100))


def finish(server: Server, topic: str) -> None:
    """Let the only channel be done with everything."""
    answer = request(server.nsq_http, "POST", "/channel/empty", topic=topic, channel="c")
    assert answer.status == 200


def test_kill_9_again_and_again_with_a_hold(start_broker: StartBroker, uniq: str) -> None:
    """All is read by the channel, so the hold alone keeps it; the reader has each record once."""
    server = start_broker(SMALL)
    channel(server, uniq)
    seen: list[bytes] = []
    at, total = 1, 0
    for number in range(ROUNDS):
        with BulkClient(server.bulk) as bulk:
            publish(server, uniq, numbered(1500, total, size=100))
            total += 1500
            known = bulk.await_next(uniq, total + 1)
            place = {uniq: {"seq": at, "incarnation": known["incarnation"]}}
            page = put(bulk, "r", ttl_s=3600, hold=True, positions=place)
            assert page["positions"][uniq]["state"] == "ok"
            finish(server, uniq)
            for frame in bulk.all_of(uniq, at, total - 300 * number, max_bytes=20_000):
                seen += frame.bodies
                at = frame.next
        server.kill()
        server.start()
    with BulkClient(server.bulk) as bulk:
        assert bulk.await_next(uniq, total + 1)["held_from"] is not None
        seen += [body for frame in bulk.all_of(uniq, at, total + 1) for body in frame.bodies]
    assert seen == numbered(total, size=100)


@pytest.mark.parametrize("cold", [False, True])
def test_flipped_bytes_are_gaps(start_broker: StartBroker, uniq: str, cold: bool) -> None:
    server = start_broker(SMALL)
    fill(server, uniq)
    with BulkClient(server.bulk) as bulk:
        bulk.await_next(uniq, 1001)
    if cold:
        server.stop()
    flipped = [3, 4, 100, 101, 300]
    with segments(server, uniq)[0].open("r+b") as file:
        for number, seq in enumerate(flipped):
            place = 64 + (seq - 1) * RECORD + 13 * number
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0x40]))
    if cold:
        server.start()
    with BulkClient(server.bulk) as bulk:
        bulk.await_next(uniq, 1001)
        frames = bulk.all_of(uniq, 1, 1001, max_bytes=10_000)
        gaps = [gap for frame in frames for gap in frame.gaps]
        assert gaps == [(3, 5, DAMAGED), (100, 102, DAMAGED), (300, 301, DAMAGED)]
        bodies = [body for frame in frames for body in frame.bodies]
        whole = numbered(1000, size=100)
        assert bodies == [whole[seq - 1] for seq in range(1, 1001) if seq not in flipped]
    server.await_log("records do not read and are passed over")
    assert metric(server, "twinwire_bulk_damaged_bytes_total") == 5 * RECORD


def test_a_file_that_lost_its_end(start_broker: StartBroker, uniq: str) -> None:
    """Nobody but the bulk API looks at it: what it lacks is said, what is there comes."""
    server = start_broker(SMALL)
    fill(server, uniq)
    server.stop()
    files = segments(server, uniq)
    assert len(files) > 2
    behind = int(files[1].stem)
    with files[0].open("r+b") as file:
        file.truncate(64 + (behind - 11) * RECORD + 50)
    server.start()
    with BulkClient(server.bulk) as bulk:
        frames = bulk.all_of(uniq, 1, 1001)
        gaps = [gap for frame in frames for gap in frame.gaps]
        assert [gap[:2] for gap in gaps] == [(behind - 10, behind)]
        bodies = [body for frame in frames for body in frame.bodies]
        assert bodies == numbered(behind - 11, size=100) + numbered(
            1001 - behind, behind - 1, size=100
        )


def test_a_file_that_is_empty(start_broker: StartBroker, uniq: str) -> None:
    """As a power cut leaves it: what it had is missing, and what is behind it comes."""
    server = start_broker(SMALL)
    fill(server, uniq)
    server.stop()
    files = segments(server, uniq)
    first, behind = (int(path.stem) for path in files[1:3])
    files[1].write_bytes(b"")
    server.start()
    with BulkClient(server.bulk) as bulk:
        frames = bulk.all_of(uniq, 1, 1001)
        assert [gap for frame in frames for gap in frame.gaps] == [(first, behind, MISSING)]
        bodies = [body for frame in frames for body in frame.bodies]
        assert bodies == numbered(first - 1, size=100) + numbered(
            1001 - behind, behind - 1, size=100
        )


def test_a_readers_file_that_cannot_be_written(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker(SMALL)
    publish(server, uniq, numbered(100))
    with BulkClient(server.bulk) as bulk:
        known = bulk.await_next(uniq, 101)
        at = {"seq": 40, "incarnation": known["incarnation"]}
        put(bulk, "r", hold=True, positions={uniq: at})
        folder = server.data / "bulk" / "readers"
        (folder / "r.json.new").mkdir()  # where the file is written first
        answer = bulk.ask("PUT", "readers/r", {"positions": {uniq: {**at, "seq": 70}}})
        assert (answer.status, answer.json.keys()) == (503, {"error"})
        assert "retry-after" in answer.headers
        assert bulk.topic(uniq)["held_from"] == 40
        (folder / "r.json.new").rmdir()
        put(bulk, "r", positions={uniq: {**at, "seq": 70}})
        assert bulk.topic(uniq)["held_from"] == 70


def test_readers_that_take_nothing(start_broker: StartBroker, uniq: str) -> None:
    """They have their places, and everybody else goes on: publishers and other ranges."""
    server = start_broker({"storage": {"sync": "none"}})
    for _ in range(40):
        publish(server, uniq, [b"x" * 900_000])
    before = resident(server)
    path = f"/bulk/v1/range/{uniq}?start=1&max_bytes={32 << 20}"
    ask = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    idle = []
    for _ in range(12):
        link = socket.create_connection(server.bulk)
        link.sendall(ask)
        assert link.recv(12) == b"HTTP/1.1 200"
        idle.append(link)
    try:
        with BulkClient(server.bulk) as bulk:
            frames = bulk.all_of(uniq, 1, 41)
            assert sum(len(frame.records) for frame in frames) == 40
        publish(server, uniq, [b"y"])
        # the whole one counts until the broker has noticed that all of it is sent
        eventually(lambda: metric(server, "twinwire_bulk_ranges_under_way"), len(idle))
        assert resident(server) - before < 30_000_000, "of memory that is not the files' own"
    finally:
        for link in idle:
            link.close()
    eventually(lambda: metric(server, "twinwire_bulk_ranges_under_way"), 0)
    assert "Traceback" not in server.log_since(), "clients that go away are no errors"


def resident(server: Server) -> int:
    """Bytes of the process that are no mapping of a file."""
    for line in Path(f"/proc/{server.pids[0]}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def test_a_broker_that_is_killed_in_the_middle(start_broker: StartBroker, uniq: str) -> None:
    """Readers go on by sequence, on new connections, and have everything that was answered."""
    server = start_broker({"storage": {"sync": "always", "segment_size": "1MiB"}})
    published = 0
    stop = threading.Event()

    def keep_on() -> None:
        nonlocal published
        while not stop.is_set():
            try:
                publish(server, uniq, numbered(200, published, size=200))
            except (OSError, AssertionError):
                return
            published += 200

    seen: dict[int, bytes] = {}
    at = 1
    for _ in range(ROUNDS):
        stop.clear()
        writer = threading.Thread(target=keep_on)
        writer.start()
        goal = at + 3000
        with BulkClient(server.bulk) as bulk:
            while not bulk.ask("GET", "topics", subscribe=uniq).json["topics"]:
                pass
            at = follow(bulk, uniq, at, goal, seen)
        server.kill()
        stop.set()
        writer.join()
        server.start()
        with BulkClient(server.bulk) as bulk:
            behind = bulk.topic(uniq)["next"]
            at = follow(bulk, uniq, at, behind, seen)
        # what was not answered may be there all the same: publish from where the log is
        published = behind - 1
    assert sorted(seen) == list(range(1, at))


def follow(bulk: BulkClient, topic: str, at: int, goal: int, seen: dict[int, Any]) -> int:
    while at < goal:
        frame = bulk.range(topic, at)
        for record in frame.records:
            assert record.seq not in seen
            seen[record.seq] = record.body
        at = frame.next
    return at
