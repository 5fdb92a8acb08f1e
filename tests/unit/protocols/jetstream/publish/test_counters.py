"""Counters and TTLs of messages, as nats-server 2.15.2 answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import WRITE, Rig
from support.streams import StreamCase, get

from broker.runtime import vfs


@pytest.fixture
def case() -> Iterator[StreamCase]:
    with Rig(None) as rig:
        yield StreamCase(rig)


def counted(seq: int, value: int) -> bytes:
    return b'{"stream":"S","seq":%d,"val":"%d"}' % (seq, value)


def test_a_message_adds_to_its_subject(case: StreamCase) -> None:
    stream = case.make(allow_msg_counter=True)
    steps = [("1", 1), ("+5", 6), ("-16", -10), ("0", -10), ("007", -3), ("-0", -3)]
    for seq, (text, value) in enumerate(steps, 1):
        assert case.ask("s.a", b"", Nats_Incr=text) == counted(seq, value)
    assert case.ask("s.b", b"", Nats_Incr="2", X="y") == counted(7, 2)
    assert get(stream, seq=7) == (
        "s.b", 7, b"NATS/1.0\r\nNats-Incr: 2\r\nX: y\r\n\r\n", b'{"val":"2"}',
    )  # fmt: skip


def test_values_have_any_size(case: StreamCase) -> None:
    case.make(allow_msg_counter=True)
    assert case.ask("s.a", b"", Nats_Incr="9" * 40) == counted(1, int("9" * 40))
    assert case.ask("s.a", b"", Nats_Incr="1") == counted(2, 10**40)
    assert case.error("s.a", b"", Nats_Incr="9" * 5000)[0] == 10171


def test_messages_of_one_turn_add_up(case: StreamCase) -> None:
    case.make(allow_msg_counter=True)
    for i in range(5000):
        case.send("s.a", b"", f"reply.{i}", Nats_Incr="1")
        case.send(f"s.b.{i}", b"", "", Nats_Incr="1")
    case.rig.settle()
    assert dict(case.answers)["reply.4999"] == counted(9999, 5000)


@pytest.mark.parametrize(
    ("data", "headers", "code"),
    [
        (b"", {"A": "b"}, 10169), (b"", {"Nats_Incr": ""}, 10169),
        (b"x", {"Nats_Incr": "1"}, 10170),
        (b"", {"Nats_Incr": "x"}, 10171), (b"", {"Nats_Incr": "1.5"}, 10171),
        (b"", {"Nats_Incr": "+"}, 10171), (b"", {"Nats_Incr": "1_0"}, 10171),
        (b"", {"Nats_Incr": " 7 "}, 10171), (b"", {"Nats_Incr": "--1"}, 10171),
        (b"", {"Nats_Incr": "1", "Nats_Expected_Last_Sequence": "1"}, 10171),
        (b"", {"Nats_Incr": "1", "Nats_Expected_Last_Subject_Sequence": "1"}, 10171),
        (b"", {"Nats_Incr": "1", "Nats_Expected_Last_Msg_Id": "1"}, 10171),
        (b"", {"Nats_Incr": "1", "Nats_Expected_Stream": "S"}, 10171),
        (b"", {"Nats_Incr": "1", "Nats_Rollup": "sub"}, 10171),
    ],
)  # fmt: skip
def test_what_a_counter_refuses(
    case: StreamCase, data: bytes, headers: dict[str, str], code: int
) -> None:
    case.make(allow_msg_counter=True, allow_rollup_hdrs=True)
    assert case.error("s.a", data, **headers)[0] == code


def test_a_message_without_headers_is_no_increment(case: StreamCase) -> None:
    case.make(allow_msg_counter=True)
    assert case.error("s.a", b"") == (10169, "message counter increment is missing")


def test_increments_need_counters(case: StreamCase) -> None:
    case.make()
    assert case.error("s.a", b"", Nats_Incr="1") == (10168, "message counters is disabled")
    assert case.error("s.a", b"", Nats_Incr="x") == (10171, "message counter increment is invalid")


def test_a_duplicate_adds_nothing(case: StreamCase) -> None:
    case.make(allow_msg_counter=True)
    assert case.ask("s.a", b"", Nats_Incr="1", Nats_Msg_Id="1") == counted(1, 1)
    assert case.ask("s.a", b"", Nats_Incr="1", Nats_Msg_Id="1") == (
        b'{"stream":"S","seq":1,"duplicate": true}'
    )
    assert case.ask("s.a", b"", Nats_Incr="1") == counted(2, 2)


def test_a_message_without_a_value_breaks_its_counter(case: StreamCase) -> None:
    stream = case.make()
    case.ask("s.a", b"text")
    config = stream.config
    config.allow_msg_counter = True
    stream.configure(config)
    assert case.error("s.a", b"", Nats_Incr="1") == (10172, "message counter is broken")


def test_the_sum_counts_for_the_size_of_a_message(case: StreamCase) -> None:
    case.make(allow_msg_counter=True, max_msg_size=40)
    assert case.ask("s.a", b"", Nats_Incr="1") == counted(1, 1)
    assert case.error("s.a", b"", Nats_Incr="999")[0] == 10054


def test_a_failed_write_takes_its_increment_back(tmp_path: Path) -> None:
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = StreamCase(rig)
        case.make(allow_msg_counter=True)
        assert case.ask("s.a", b"", Nats_Incr="1") == counted(1, 1)
        vfs.fail(WRITE, 28)
        assert case.error("s.a", b"", Nats_Incr="1")[0] == 10077
        vfs.heal()
        rig.advance(3)
        assert case.ask("s.a", b"", Nats_Incr="1") == counted(2, 2)


def test_a_short_ttl_becomes_that_of_markers(case: StreamCase) -> None:
    more = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 5 * 10**9}
    stream = case.make(**more)
    for ttl, stored in (("2", "5"), ("1.5s", "5"), ("1m30s", "1m30s"), ("never", "never")):
        case.ask("s.a", b"x", A="1", Nats_TTL=ttl, B="2")
        lines = ["A: 1", f"Nats-TTL: {stored}", "B: 2"]
        if ttl != stored:
            lines = ["A: 1", "B: 2", f"Nats-TTL: {stored}"]
        block = "NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n"
        assert get(stream, last_by_subj="s.a")[2:] == (block.encode(), b"x")


def test_with_one_message_of_a_subject_a_ttl_may_be_short(case: StreamCase) -> None:
    stream = case.make(
        allow_msg_ttl=True, subject_delete_marker_ttl=5 * 10**9, max_msgs_per_subject=1
    )
    case.ask("s.a", b"x", Nats_TTL="2")
    assert get(stream, seq=1)[2] == b"NATS/1.0\r\nNats-TTL: 2\r\n\r\n"
