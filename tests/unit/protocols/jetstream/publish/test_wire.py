"""Headers of published messages and PubAcks, as nats-server 2.15.2 reads and writes them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.native import jetstream_publish as wire

MSG_ID, STREAM, LAST_SEQ, SUBJECT_SEQ, SUBJECT, LAST_ID, ROLLUP, TTL = range(8)
REQUIRED_API_LEVEL = 21


def block(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def test_headers_of_the_server_are_found() -> None:
    found = wire.headers(
        block("A: 1", "Nats-Msg-Id: id", "Nats-TTL:5", "Nats-Rollup:   sub", "B: Nats-Incr: 1")
    )
    assert found == {MSG_ID: b"id", TTL: b"5", ROLLUP: b"sub"}


def test_the_last_name_of_the_list_is_found() -> None:
    assert wire.headers(block("Nats-Required-Api-Level: 2")) == {REQUIRED_API_LEVEL: b"2"}


@pytest.mark.parametrize(
    "line",
    ["Nats-Msg-Id-X: 1", "X-Nats-Msg-Id: 1", "nats-msg-id: 1", "Nats-Msg-Id", "Nats-Msg-Id : 1"],
)
def test_a_name_must_be_exact(line: str) -> None:
    assert wire.headers(block(line)) == {}


def test_the_first_of_a_name_counts() -> None:
    assert wire.headers(block("Nats-Msg-Id: a", "Nats-Msg-Id: b")) == {MSG_ID: b"a"}
    assert wire.headers(block("Nats-Msg-Id: ", "Nats-Msg-Id: b")) == {}


def test_an_empty_value_is_absent() -> None:
    assert wire.headers(block("Nats-Msg-Id:", "Nats-Rollup:   ")) == {}


def test_blanks_at_the_end_belong_to_the_value() -> None:
    assert wire.headers(block("Nats-Msg-Id: 1 ")) == {MSG_ID: b"1 "}


def test_a_value_ends_at_the_line_end_only() -> None:
    assert wire.headers(block("Nats-Msg-Id: a\rb")) == {MSG_ID: b"a\rb"}


@pytest.mark.parametrize(
    "text", [b"", b"NATS/1.0", b"NATS/1.0\r\n", b"NATS/1.0\r\nNats-Msg-Id: ", b"\r\n\r\n\r\n"]
)
def test_a_block_that_is_cut_off_has_no_headers(text: bytes) -> None:
    assert wire.headers(text) == {}


def test_each_part_of_a_block_can_be_read() -> None:
    whole = block("A: 1", "Nats-Msg-Id: id", "Nats-TTL: 5")
    for end in range(len(whole)):
        assert set(wire.headers(whole[:end])) <= {MSG_ID, TTL}


def test_one_header_of_any_name() -> None:
    text = block("KV-Operation: PURGE", "KV-OperationX: no")
    assert wire.header(text, b"KV-Operation") == b"PURGE"
    assert wire.header(text, b"KV") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0), (b"007", 7), (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", None), (b"", None), (b"-1", None), (b"+1", None),
        (b"1 ", None), (b"x", None), (b"1" * 21, None),
    ],
)  # fmt: skip
def test_numbers(text: bytes, value: int | None) -> None:
    assert wire.number(text) == value


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"1s", 10**9), (b"1m30s", 90 * 10**9), (b"1.5h", 5400 * 10**9), (b"100ms", 10**8),
        (b"3us", 3000), ("3µs".encode(), 3000), (b"7ns", 7), (b"-2s", -2 * 10**9), (b"0", 0),
        (b"", None), (b"5", None), (b"s", None), (b".s", None), (b"1x", None), (b"1s2", None),
        (b"9999999999999h", None),
    ],
)  # fmt: skip
def test_durations(text: bytes, ns: int | None) -> None:
    assert wire.duration(text) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"10", 10 * 10**9), (b"never", -1), (b"1m30s", 90 * 10**9), (b"1s", 10**9),
        (b"0", 0), (b"-1", 0), (b"999ms", 0), (b"junk", 0), (b"99999999999999999999", 0),
    ],
)  # fmt: skip
def test_ttls(text: bytes, ns: int) -> None:
    assert wire.ttl(text) == ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1795646345958437836, "2026-11-25T22:39:05.958437836Z"),
        (1709210096100000000, "2024-02-29T12:34:56.1Z"),
    ],
)
def test_times(ns: int, text: str) -> None:
    assert wire.time_text(ns) == text.encode()


def test_the_date_of_each_day_of_many_years() -> None:
    for day in range(0, 80_000, 7):
        want = datetime.fromtimestamp(day * 86400, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert wire.time_text(day * 86400 * 10**9) == want.encode()


def test_pub_acks() -> None:
    prefix = b'{"stream":"S","seq":'
    assert wire.pub_ack(prefix, 7, False) == b'{"stream":"S","seq":7}'
    assert wire.pub_ack(prefix, 2, True) == b'{"stream":"S","seq":2,"duplicate": true}'
    assert wire.pub_ack(prefix, 2**64 - 1, False).endswith(b":18446744073709551615}")
