"""Staged blocks and commits at a running broker: what is published, what is answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from support.bulk.writer import BulkWriter, bodies, once
from support.clients.bulk import BulkClient
from support.clients.http import request
from support.clients.upload import block, record, sealed

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours


def rows(*of: object, count: int = 5) -> list[bytes]:
    return [b"%a %d" % (of, number) for number in range(count)]


@pytest.fixture
def client(broker: Server) -> Iterator[BulkClient]:
    with BulkClient(broker.bulk) as client:
        yield client


@pytest.fixture
def writer(client: BulkClient, uniq: str) -> BulkWriter:
    return BulkWriter(client, f"writer of {uniq}/ü")


def test_named_attempts_are_published_in_the_order_of_their_parts(
    client: BulkClient, writer: BulkWriter, uniq: str
) -> None:
    winners = [writer.stage(7, uniq, part, f"a{part}", rows(part)) for part in (2, 0, 1)]
    writer.stage(7, uniq, 1, "loser", rows("loser"))
    assert writer.committed(7, {uniq: winners}) == {
        uniq: {"records": 15, "first": 1, "last": 15, "state": "committed"}
    }
    assert bodies(client, uniq, 16) == [*rows(0), *rows(1), *rows(2)]
    page = writer.show()
    assert page["topics"] == {
        uniq: {"epoch": 7, "records": 15, "first": 1, "last": 15, "state": "committed"}
    }
    assert page["committing"] is None


@pytest.mark.parametrize("again", [7, 6, 0])
def test_the_same_and_older_epochs_publish_nothing(
    client: BulkClient, writer: BulkWriter, uniq: str, again: int
) -> None:
    first = writer.stage(7, uniq, 0, "a", rows(7))
    before = writer.committed(7, {uniq: [first]})[uniq]
    # the batch runs again, cut otherwise
    parts = [writer.stage(again, uniq, part, "b", rows(part)) for part in (0, 1)]
    found = writer.committed(again, {uniq: parts})[uniq]
    expected = before if again == 7 else {"records": None, "first": None, "last": None}
    assert found == {**expected, "state": "already"}
    after = writer.committed(8, {uniq: [writer.stage(8, uniq, 0, "a", rows(8))]})[uniq]
    assert (after["first"], after["state"]) == (6, "committed")
    assert bodies(client, uniq, 11) == [*rows(7), *rows(8)]


def test_many_topics_and_blocks_of_an_attempt(
    client: BulkClient, writer: BulkWriter, uniq: str
) -> None:
    topics: dict[str, list[list[Any]]] = {}
    for number in range(5):
        topic, size = f"{uniq}.{number}", 0
        for piece in range(3):
            data = block(rows(number, piece))
            answer = writer.post(1, topic, 0, "a", data, size)
            size += len(data)
            assert answer.json == {"offset": size, "state": "staged"}
        topics[topic] = [[0, "a", size]]
    topics[f"{uniq}.none"] = []
    found = writer.committed(1, topics)
    assert found.pop(f"{uniq}.none") == {
        "records": 0,
        "first": None,
        "last": None,
        "state": "committed",
    }
    assert {entry["records"] for entry in found.values()} == {15}
    for number in range(5):
        expected = [row for piece in range(3) for row in rows(number, piece)]
        assert bodies(client, f"{uniq}.{number}", 16) == expected


def test_an_offset_is_taken_once(writer: BulkWriter, uniq: str) -> None:
    one, other = block(rows(1)), block(rows(2))
    assert writer.post(0, uniq, 0, "a", other, 8).json["offset"] == 0
    for _ in range(2):
        assert writer.post(0, uniq, 0, "a", one).json == {"offset": len(one), "state": "staged"}
    answer = writer.post(0, uniq, 0, "a", other)
    assert (answer.status, answer.json["offset"]) == (409, len(one))
    answer = writer.post(0, uniq, 0, "a", other, len(one) + 8)
    assert (answer.status, answer.json["offset"]) == (409, len(one))
    assert writer.post(0, uniq, 0, "a", other, len(one)).status == 200
    assert writer.post(0, uniq, 0, "a", one).json["offset"] == len(one) + len(other)


def test_a_commit_names_exactly_what_is_staged(
    client: BulkClient, writer: BulkWriter, uniq: str
) -> None:
    part, attempt, size = writer.stage(0, uniq, 0, "a", rows(0))
    wrong = [[[part, attempt, size + 8]], [[part, "b", size]], [[1, attempt, size]]]
    for attempts in wrong:
        answer = writer.commit(0, {uniq: attempts})
        assert (answer.status, len(answer.json["missing"])) == (409, 1)
    answer = writer.commit(0, {uniq: [[part, attempt, size]] * 2})
    assert answer.status == 400
    assert uniq not in writer.show()["topics"]
    assert writer.committed(0, {uniq: [[part, attempt, size]]})[uniq]["first"] == 1


def test_dropped_epochs(client: BulkClient, writer: BulkWriter, uniq: str) -> None:
    named = writer.stage(3, uniq, 0, "a", rows(0))
    writer.stage(4, uniq, 0, "a", rows(0))
    assert set(writer.show()["staged"]) == {"3", "4"}
    assert writer.drop(3).status == 200
    assert set(writer.show()["staged"]) == {"4"}
    assert writer.commit(3, {uniq: [named]}).status == 409
    again = writer.stage(3, uniq, 0, "a", rows("other"))
    assert writer.committed(3, {uniq: [again]})[uniq]["records"] == 5
    assert bodies(client, uniq, 6) == rows("other")


HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


def test_records_keep_all_they_have(
    broker: Server, client: BulkClient, writer: BulkWriter, uniq: str
) -> None:
    later = 2_000_000_000 * 10**9
    name = uniq.encode()
    records = [
        record(b"", headers=HEADERS),
        record(b"\xff\x00" * 9, subject=name),
        record(b"x" * (1 << 20), not_before_ns=later),
    ]
    data = sealed(3, b"".join(records))
    assert writer.post(0, uniq, 0, 0, data).status == 200
    assert writer.committed(0, {uniq: [[0, 0, len(data)]]})[uniq]["records"] == 3
    client.await_next(uniq, 4)
    found = client.range(uniq, 1).records
    assert [one.headers for one in found] == [HEADERS, b"", b""]
    assert [one.subject for one in found] == [b"", b"", b""]  # the topic's own name
    assert [one.not_before_ns for one in found] == [0, 0, later]
    assert [len(one.body) for one in found] == [0, 18, 1 << 20]
    assert len({one.reply[:8] for one in found}) == 1
    page = request(broker.nsq_http, "GET", "/v1/topic/messages", topic=uniq, state="all").json
    assert {message.get("reply") for message in page["messages"]} <= {None, ""}


def damaged(data: bytes, at: int, to: bytes) -> bytes:
    """A block with a sum that fits and something else wrong."""
    raw = bytearray(data)
    raw[at : at + len(to)] = to
    return sealed(int.from_bytes(raw[8:12], "little"), bytes(raw[24:]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"TWBLOCK1",
        block(rows(1))[:-8],
        block(rows(1)) + bytes(8),
        b"TWBLOCK2" + block(rows(1))[8:],
        block(rows(1))[:-1] + b"\1",
        sealed(6, block(rows(1))[24:]),
        sealed(4, block(rows(1))[24:]),
        damaged(block(rows(1)), 24, b"\xff\xff\xff\xff"),
        damaged(block(rows(1)), 28, b"\xff\xff\xff\xff"),
        damaged(block(rows(1)), 34, b"\1"),
        damaged(block(rows(1)), 36, b"\1"),
        damaged(block(rows(1)), 47, b"\x80"),
        sealed(1, record(b"x", subject=b"elsewhere")),
        sealed(1, record(b"x", headers=b"A: b\r\n\r\n")),
        sealed(1, record(b"x", headers=b"NATS/1.0\r\nA: b\r\n")),
        sealed(1, record(b"x")[:-1] + b"x"),
    ],
)
def test_what_is_no_block_is_refused(writer: BulkWriter, uniq: str, data: bytes) -> None:
    answer = writer.post(0, uniq, 0, 0, data)
    assert answer.status == 400, answer.body
    assert "block" in answer.json["error"]
    assert writer.show()["staged"] == {}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("tx/w/x/t/0/0", 400),
        ("tx/w/-1/t/0/0", 400),
        ("tx/w/9223372036854775808/t/0/0", 400),
        ("tx/w/0/t/2147483648/0", 400),
        ("tx/w/0/t/0/a%2Fb", 400),
        ("tx/w/0/t%20t/0/0", 400),
        ("tx/w/0/t.%2A/0/0", 400),
        (f"tx/w/0/{'t' * 201}/0/0", 400),
        (f"tx/{'w' * 201}/0/t/0/0", 400),
        ("tx/w/0/t/0", 404),
    ],
)
def test_names_that_cannot_be(client: BulkClient, path: str, status: int) -> None:
    answer = client.ask("POST", path, block(rows(0)))
    assert (answer.status, list(answer.json)) == (status, ["error"])


def test_blocks_and_commits_that_are_too_large(writer: BulkWriter, uniq: str) -> None:
    answer = writer.post(0, uniq, 0, 0, bytes((16 << 20) + 1))
    assert answer.status == 413


def test_two_drivers_commit_once(broker: Server, client: BulkClient, uniq: str) -> None:
    named = BulkWriter(client, uniq).stage(1, uniq, 0, "a", rows(0, count=20_000))
    found: list[str] = []

    def drive() -> None:
        with BulkClient(broker.bulk) as own:
            found.append(BulkWriter(own, uniq).committed(1, {uniq: [named]})[uniq]["state"])

    drivers = [threading.Thread(target=drive) for _ in range(4)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert sorted(found) == ["already"] * 3 + ["committed"]
    once(bodies(client, uniq, 20_001), rows(0, count=20_000))


def test_rights(start_broker: StartBroker, tmp_path: Any) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a wa write t.*\nb rb read\nc wc write u.*\n")
    server = start_broker({"bulk": {"listen": "127.0.0.1:0", "token_file": str(tokens)}})
    with BulkClient(server.bulk, "wa") as mine, BulkClient(server.bulk, "rb") as theirs:
        named = BulkWriter(mine, "w").stage(0, "t.1", 0, 0, rows(0))
        assert BulkWriter(mine, "w").post(0, "u", 0, 0, block(rows(0))).status == 403
        assert BulkWriter(mine, "w").commit(0, {"t.1": [named], "u": []}).status == 403
        other = BulkWriter(theirs, "w")
        assert other.post(0, "t.1", 0, 1, block(rows(0))).status == 403
        assert other.commit(0, {"t.1": [named]}).status == 403
        assert other.drop(0).status == 403
        assert other.client.ask("GET", "tx/w").status == 403
        with BulkClient(server.bulk, "wc") as elsewhere:
            assert BulkWriter(elsewhere, "w").drop(0).status == 403, "it is not theirs"
        assert BulkWriter(mine, "w").committed(0, {"t.1": [named]})["t.1"]["state"] == "committed"


@pytest.mark.parametrize("sync", ["1h", "always", "none"])
def test_who_reads_what_he_wrote_finds_it(start_broker: StartBroker, sync: str) -> None:
    """Readers see what is on the disk; a commit's records are, whatever the topic's own pace."""
    broker = start_broker({"storage": {"sync": sync}})
    with BulkClient(broker.bulk) as client:
        writer = BulkWriter(client, "w")
        for epoch in (1, 2):
            named = {t: [writer.stage(epoch, t, 0, "a", rows(epoch))] for t in ("t", "u")}
            writer.committed(epoch, named)
            assert [client.topic(t)["next"] for t in ("t", "u")] == [5 * epoch + 1] * 2
