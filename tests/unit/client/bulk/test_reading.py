"""Topics to Arrow: places, several brokers, gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.bulk.fake import Answer, FakeBulkApi, FakeLog, Request, json_answer
from support.clients.frames import LOG_ID, record

from broker.client.bulk import Damaged, OtherIncarnation, Trimmed, UnknownTopic
from broker.client.bulk.errors import DAMAGED, MISSING, Gap

pytest.importorskip("pyarrow")
from broker.client.bulk import iter_arrow, read_arrow

TEN = {seq: record(seq, b"body-%d" % seq) for seq in range(1, 11)}


@pytest.fixture
def fake() -> Iterator[FakeBulkApi]:
    with FakeBulkApi(FakeLog(TEN, 11)) as made:
        yield made


def seqs(server: str | list[str], *where: Any, **more: Any) -> list[int]:
    found = read_arrow(server, "t", *where, columns=["offset"], **more).column(0).to_pylist()
    return [int(seq) for seq in found]


def test_a_whole_topic(fake: FakeBulkApi) -> None:
    table = read_arrow(fake.address, "t")
    assert table.column("value").to_pylist() == [b"body-%d" % i for i in range(1, 11)]
    assert set(table.column("partition").to_pylist()) == {2}
    ranges = [r.query for r in fake.requests if "/range/" in r.path]
    assert [q["start"] for q in ranges] == ["1", "4", "7", "10"]
    assert {(q["end"], q["inc"]) for q in ranges} == {("11", LOG_ID.hex())}
    assert fake.connections == 1


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((4,), [4, 5, 6, 7, 8, 9, 10]),
        ((None, 3), [1, 2]),
        ((9, 99), [9, 10]),
        ((5, 5), []),
        ((7, 3), []),
    ],
)
def test_places(fake: FakeBulkApi, where: tuple[Any, ...], expected: list[int]) -> None:
    assert seqs(fake.address, *where) == expected


def test_times_are_exact(fake: FakeBulkApi) -> None:
    at = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    with pytest.raises(Trimmed):  # the fake finds seq 0
        seqs(fake.address, at)
    asked = next(r.body for r in fake.requests if r.path.endswith("/offsets"))
    assert asked == b'{"topics": {"t": {"time_ns": 1700000000123456000}}}'


def test_no_such_topic(fake: FakeBulkApi) -> None:
    with pytest.raises(UnknownTopic, match=f"no broker of {fake.address} has the topic u"):
        read_arrow(fake.address, "u")


def test_several_brokers(fake: FakeBulkApi) -> None:
    other = {seq: record(seq, subject=b"a.b") for seq in (20, 30)}
    with FakeBulkApi(FakeLog(other, 31, first=20)) as second:
        assert seqs([fake.address, second.address]) == [*range(1, 11), 20, 30]
        assert seqs(f"{fake.address},{second.address}", subject_filter="a.*") == [20, 30]


def hurt_once(log: FakeLog, seq: int, **more: Any) -> Any:
    """The first time a record is sent, it is hurt on its way; `more` changes what comes then."""
    first = [True]

    def answer(request: Request) -> Answer:
        made = log(request)
        body = record(seq, b"body-%d" % seq)
        if first[0] and body in made.body:
            first[0] = False
            hurt = body[:-1] + bytes((body[-1] ^ 1,))
            vars(log).update(more)
            return replace(made, body=made.body.replace(body, hurt))
        return made

    return answer


def test_what_is_hurt_on_its_way_is_asked_for_again() -> None:
    with FakeBulkApi(hurt_once(FakeLog(TEN, 11), 5)) as fake:
        assert seqs(fake.address) == list(range(1, 11))
        asked = [(r.query["start"], r.query["end"]) for r in fake.requests if "/range/" in r.path]
    assert asked == [("1", "11"), ("4", "11"), ("4", "7"), ("7", "11"), ("10", "11")]


@pytest.mark.parametrize("more", [{"per_frame": 2}, {"first": 9}])
def test_only_the_same_seqs_take_the_place_of_what_was_hurt(more: dict[str, int]) -> None:
    reported_gaps: list[Gap] = []
    with FakeBulkApi(hurt_once(FakeLog(TEN, 11), 5, **more)) as fake:
        found = seqs(
            fake.address, on_gap="skip", told_gap=lambda *gap: reported_gaps.append(gap[2])
        )
    assert found[:5] == [1, 2, 3, 4, 6]
    assert Gap(5, 6, DAMAGED) in reported_gaps
    assert len(found) == len(set(found))


def test_gaps() -> None:
    damaged = TEN | {5: TEN[5][:-1] + b"?"}
    reported_gaps: list[tuple[str, str, Gap]] = []
    del damaged[8]
    with FakeBulkApi(FakeLog(damaged, 11, gaps=((8, 9, MISSING),))) as fake:
        with pytest.raises(Damaged, match="5-5 damaged") as raised:
            read_arrow(fake.address, "t")
        assert raised.value.gaps == (Gap(5, 6, DAMAGED),)
        found = seqs(fake.address, on_gap="skip", told_gap=lambda *gap: reported_gaps.append(gap))
    assert found == [1, 2, 3, 4, 6, 7, 9, 10]
    assert reported_gaps == [("b", "t", Gap(5, 6, DAMAGED)), ("b", "t", Gap(8, 9, MISSING))]
    with pytest.raises(ValueError, match="expected raise or skip"):
        list(iter_arrow(fake.address, "t", on_gap="ignore"))


def test_trimmed_while_reading() -> None:
    log = FakeLog(TEN, 11)

    def answer(request: Any) -> Answer:
        if request.query.get("start") == "4":
            log.first = 8
        return log(request)

    gaps: list[Gap] = []
    with FakeBulkApi(answer) as fake:
        with pytest.raises(Trimmed) as raised:
            seqs(fake.address)
        assert raised.value.first == 8
        log.first = 1
        found = seqs(fake.address, on_gap="skip", told_gap=lambda _b, _t, gap: gaps.append(gap))
    assert (found, gaps) == ([1, 2, 3, 8, 9, 10], [Gap(4, 8, MISSING)])


def test_a_topic_made_anew_while_reading() -> None:
    log = FakeLog(TEN, 11)

    def answer(request: Any) -> Answer:
        if request.query.get("start") == "4":
            return json_answer({"error": "it was made anew", "incarnation": "00"}, 409)
        return log(request)

    with FakeBulkApi(answer) as fake, pytest.raises(OtherIncarnation):
        seqs(fake.address, on_gap="skip")


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_frame_of_another_place(shift: int) -> None:
    log = FakeLog(TEN, 11)

    def answer(request: Any) -> Answer:
        if request.query.get("start") == "4":
            request.query["start"] = str(4 + shift)
        return log(request)

    with FakeBulkApi(answer) as fake, pytest.raises(Damaged, match="requested 4"):
        seqs(fake.address)


def test_a_broker_that_has_nothing_there() -> None:
    log = FakeLog({}, 11)
    log.next, rows = 1, 11

    def answer(request: Any) -> Answer:
        log.next = rows if request.path.endswith("/topics") else 1
        return log(request)

    with FakeBulkApi(answer) as fake, pytest.raises(Exception, match="no longer has a record at 1"):
        seqs(fake.address)
