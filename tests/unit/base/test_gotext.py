"""Text as Go writes it: the expected values are those of strconv.Quote and time.ParseDuration."""

from __future__ import annotations

import pytest

from broker.base.gotext import go_quote, parse_int, time_quote


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"foo", '"foo"'),
        (b"it's", '"it\'s"'),
        (b'a"b\\c', r'"a\"b\\c"'),
        (b"\x00\x01\x1b\x1f\x7f", r'"\x00\x01\x1b\x1f\x7f"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\xff\xfe", r'"\xff\xfe"'),
        (b"\xe2\x82", r'"\xe2\x82"'),  # cut off
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),  # a surrogate
        (b"\xf4\x90\x80\x80", r'"\xf4\x90\x80\x80"'),  # above U+10FFFF
        (b"\xc0\xaf", r'"\xc0\xaf"'),  # too long a form
        ("\ufffd".encode(), '"\ufffd"'),
        ("äö€\U0001f600".encode(), '"äö€\U0001f600"'),
        (
            "\u0085\u00a0\u00ad\u200b\u2028\ufeff".encode(),
            r'"\u0085\u00a0\u00ad\u200b\u2028\ufeff"',
        ),
        ("\ue000\U000e0001".encode(), r'"\ue000\U000e0001"'),
        ("e\u0301".encode(), '"e\u0301"'),
    ],
)
def test_go_quote(raw: bytes, quoted: str) -> None:
    assert go_quote(raw) == quoted
    assert go_quote(raw.decode("utf-8", "surrogateescape")) == quoted


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"5x", '"5x"'),
        (b'"\\', r'"\"\\"'),
        (b"\n\x00\x7f", '"\\x0a\\x00\x7f"'),
        ("ä\u00a0".encode(), r'"\xc3\xa4\xc2\xa0"'),
        (b"\xff\xe2\x82", r'"\xff\xe2\x82"'),
        ("\ufffd".encode(), r'"\xef\xbf\xbd"'),
    ],
)
def test_time_quote(raw: bytes, quoted: str) -> None:
    assert time_quote(raw.decode("utf-8", "surrogateescape")) == quoted


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("+7", 7), ("-7", -7), ("007", 7),
        ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)),
    ],
)  # fmt: skip
def test_integers(text: str, number: int) -> None:
    assert parse_int(text) == number


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "invalid syntax"), ("-", "invalid syntax"), ("1 ", "invalid syntax"),
        ("1_0", "invalid syntax"), ("\u0661", "invalid syntax"), ("--1", "invalid syntax"),
        ("9223372036854775808", "value out of range"),
        ("-9223372036854775809", "value out of range"), ("9" * 5000, "value out of range"),
    ],
)  # fmt: skip
def test_what_is_no_integer(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_int(text)
