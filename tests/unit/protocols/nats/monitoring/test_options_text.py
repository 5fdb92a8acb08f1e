"""Times, durations and JSON as Go writes them."""

from __future__ import annotations

import orjson
import pytest

from broker.protocols.nats.monitoring.lists import is_literal
from broker.protocols.nats.monitoring.options import (
    encode,
    filled,
    number,
    rfc3339,
    round_trip,
    uptime,
)

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (59, "59s"),
        (60, "1m0s"),
        (3_600, "1h0m0s"),
        (90_061, "1d1h1m1s"),
        (365 * 86_400, "1y0d0h0m0s"),
    ],
)
def test_uptime(seconds: int, text: str) -> None:
    assert uptime(seconds * SECOND) == text


def test_times_have_no_trailing_zeros() -> None:
    assert rfc3339(1_700_000_000 * SECOND) == "2023-11-14T22:13:20Z"
    assert rfc3339(1_700_000_000 * SECOND + 1) == "2023-11-14T22:13:20.000000001Z"


@pytest.mark.parametrize(
    ("rtt_ns", "text"),
    [
        (0, "0s"),
        (999, "999ns"),
        (1_000, "1\u00b5s"),
        (92_777, "92\u00b5s"),
        (1_234_567, "1.234567ms"),
        (2 * SECOND, "2s"),
    ],
)
def test_round_trips(rtt_ns: int, text: str) -> None:
    assert round_trip(rtt_ns) == text


def test_whole_numbers_have_no_fraction() -> None:
    assert orjson.dumps([number(2.0), number(0.5)]) == b"[2,0.5]"


def test_html_is_escaped() -> None:
    page = {"subject": "a.>", "name": "<b>&\u2028"}
    assert encode(page, indent=False) == (
        rb'{"subject":"a.\u003e","name":"\u003cb\u003e\u0026\u2028"}'
    )
    assert orjson.loads(encode(page)) == page


def test_half_a_character_does_not_stop_a_page() -> None:
    assert encode({"name": "\ud83d", "in": [{"\ud83d": 1}]}, indent=False) == (
        b'{"name":"?","in":[{"?":1}]}'
    )


def test_what_is_empty_is_left_out() -> None:
    assert filled({"a": "", "b": 0, "c": [], "d": None, "e": 1}) == {"d": None, "e": 1}


@pytest.mark.parametrize(
    ("subject", "literal"),
    [("a.b", True), ("a.*", False), (">", False), ("a..b", False), ("a.b*", True), ("", False)],
)
def test_subjects_to_publish_to(subject: str, literal: bool) -> None:
    assert is_literal(subject) is literal
