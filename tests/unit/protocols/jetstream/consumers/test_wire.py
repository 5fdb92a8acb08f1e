"""The texts of consumers: what is written, and what is understood."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.native import consumers as wire

U64 = st.integers(0, 2**64 - 1)


def test_the_numbers_of_an_ack_subject() -> None:
    assert (
        wire.write_ack_numbers(1, 3, 10, 1795322326314073639, 0) == b"1.3.10.1795322326314073639.0"
    )
    assert wire.write_ack_numbers(1, 10**9, 10**18 + 5, 7, 2**64 - 1) == (
        b"1.1000000000.1000000000000000005.7.18446744073709551615"
    )


@given(U64, U64, U64, st.integers(0, 2**63 - 1), U64)
def test_written_numbers_are_read(a: int, b: int, c: int, t: int, p: int) -> None:
    text = wire.write_ack_numbers(a, b, c, t, p)
    assert text == f"{a}.{b}.{c}.{t}.{p}".encode()
    assert wire.read_ack_numbers(text) == (a, b, c, t, p)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"1.2.3.4",
        b"1.2.3.4.",
        b"1..3.4.5",
        b"1.2.x.4.5",
        b"1.2.-3.4.5",
        b"1.2.3.4.5.6",
        b"1.2.3.4.18446744073709551616",
        b"1.2.3.4.99999999999999999999",
    ],
)
def test_other_numbers_are_invalid(text: bytes) -> None:
    assert wire.read_ack_numbers(text) is None


def test_the_second_form_may_have_more_tokens() -> None:
    assert wire.read_ack_numbers(b"1.2.3.4.5.more.of.them", more=True) == (1, 2, 3, 4, 5)
    assert wire.read_ack_numbers(b"1.2.3.4.5", more=True) == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("body", "kind", "rest"),
    [
        (b"", "done", b""),
        (b"+ACK", "done", b""),
        (b"+OK", "done", b""),
        (b"+ACK ", "unknown", b""),
        (b"-NAK", "nak", b""),
        (b'-NAK {"delay": 100}', "nak", b'{"delay": 100}'),
        (b"-NAK 5s ", "nak", b"5s"),
        (b"+WPI", "progress", b""),
        (b"+WPI x", "unknown", b""),
        (b"+NXT", "next", b""),
        (b'+NXT {"batch":3}', "next", b'{"batch":3}'),
        (b"+NXT 3", "next", b"3"),
        (b"+TERM", "term", b""),
        (b"+TERM because", "term", b"because"),
        (b"+TERMx", "term", b"x"),
        (b"+TER", "unknown", b""),
        (b"junk", "unknown", b""),
    ],
)
def test_bodies_of_acks(body: bytes, kind: str, rest: bytes) -> None:
    assert wire.read_ack_body(body) == (kind, rest)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", {"batch": 1}),
        (b"  \r\n", {"batch": 1}),
        (b"5", {"batch": 5}),
        (b"+5", {"batch": 5}),
        (b"007", {"batch": 7}),
        (b"0", {}),
        (b"-1", {}),
        (b"hello", {"batch": 1}),
        (b"[]", {"batch": 1}),
        (b"{}", {}),
        (b'{"batch":0}', {}),
        (b'{"batch":-4}', {}),
        (b' { "batch" : 10 , "no_wait" : true } ', {"batch": 10, "no_wait": True}),
        (b'{"no_wait":false,"expires":-1}', {"expires": -1}),
    ],
)
def test_pull_requests(body: bytes, found: dict[str, int]) -> None:
    assert wire.read_pull_request(body) == found


def test_every_field_of_a_pull_request() -> None:
    fields = {
        "expires": 30_000_000_000,
        "batch": 500,
        "max_bytes": 1 << 20,
        "no_wait": True,
        "idle_heartbeat": 15_000_000_000,
        "group": "A",
        "id": "NWmU2mTnl7OwQ4Xe4hBgqn",
        "min_pending": 5,
        "min_ack_pending": 6,
        "priority": 3,
    }
    body = json.dumps(fields).encode()
    assert wire.read_pull_request(body) == fields
    assert wire.read_pull_request(body, slow=True) == fields


@pytest.mark.parametrize(
    "body",
    [
        b'{"batch":1e3}',
        b'{"batch":01}',
        b'{"batch":1.5}',
        b'{"batch":1111111111111111111}',
        b'{"batch":"1"}',
        b'{"group":"\\u0041"}',
        b'{"group":"\xc3\xa9"}',
        b'{"Batch":1}',
        b'{"other":1}',
        b'{"batch":1,}',
        b'{"batch":1} x',
        b'{"batch":1',
        b'{"batch"',
        b'{"bat',
        b"{",
        b"{bad",
        b'{"no_wait":yes}',
        b'{"batch":}',
    ],
)
def test_unusual_json_is_left_to_the_slow_reader(body: bytes) -> None:
    assert wire.read_pull_request(body) is None


REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "expires": st.integers(-(10**18) + 1, 10**18 - 1),
        "batch": st.integers(1, 10**18 - 1),
        "no_wait": st.booleans(),
        "group": st.text("abcXYZ09-_/=", max_size=16),
        "priority": st.integers(0, 9),
    },
)


@given(REQUESTS, st.integers(0, 4))
def test_both_readers_agree(fields: dict[str, object], indent: int) -> None:
    body = json.dumps(fields, indent=indent or None).encode()
    assert wire.read_pull_request(body) == wire.read_pull_request(body, slow=True)


def test_the_slow_reader_ignores_unknown_keys() -> None:
    assert wire.read_pull_request(b'{"x":[1],"batch":2}', slow=True) == {"batch": 2}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{bad", "invalid character 'b' looking for beginning of object key string"),
        (b"{", "unexpected end of JSON input"),
    ],
)
def test_broken_json_has_the_text_of_go(body: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wire.read_pull_request(body, slow=True)


def test_statuses() -> None:
    assert wire.write_status(b"404 No Messages") == b"NATS/1.0 404 No Messages\r\n\r\n"
    assert wire.write_status(b"408 Request Timeout", 1, 0) == (
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\nNats-Pending-Bytes: 0\r\n\r\n"
    )
    assert wire.write_heartbeat(5, 7) == (
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\nNats-Last-Stream: 7\r\n\r\n"
    )
    assert wire.write_heartbeat(5, 7, b"$JS.FC.S.C.abcd") == (
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\nNats-Last-Stream: 7\r\n"
        b"Nats-Consumer-Stalled: $JS.FC.S.C.abcd\r\n\r\n"
    )


def test_headers_of_deliveries() -> None:
    assert wire.write_headers(b"", 2) == b"NATS/1.0\r\nNats-Msg-Size: 2\r\n\r\n"
    assert wire.write_headers(b"NATS/1.0\r\nH: v\r\n\r\n", 0) == (
        b"NATS/1.0\r\nH: v\r\nNats-Msg-Size: 0\r\n\r\n"
    )
    assert wire.write_headers(b"", -1, b"abc") == b"NATS/1.0\r\nNats-Pin-Id: abc\r\n\r\n"
