"""The transcript format itself: what a line stands for, and which scenarios there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.clients.peer import PeerError
from support.golden.replay import joined, match_json
from support.golden.transcript import GoldenError, Step, escape, expand, read_transcript

FOLDER = Path(__file__).parent
NAMES = {"uniq": b"u1234567", "m1": b"0123456789abcdef"}


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (r"PING\r\n", b"PING\r\n"),
        (r"\x00\xff\\n", b"\x00\xff\\n"),
        ("é", "é".encode()),
        ("PUB ${uniq} 2", b"PUB u1234567 2"),
        ("${u32 -1}", b"\xff\xff\xff\xff"),
        ("${sized {}}", b"\0\0\0\2{}"),
        ('${sized {"a":{"b":1}}}', b'\0\0\0\x0d{"a":{"b":1}}'),
        (r"${repeat 3 ab\n}", b"ab\nab\nab\n"),
        ("${response OK}", b"\0\0\0\6\0\0\0\0OK"),
        ("${error E_X ${m1}}", b"\0\0\0\x18\0\0\0\1E_X 0123456789abcdef"),
        ('CONNECT {"verbose":false}', b'CONNECT {"verbose":false}'),
        ("$SYS.x", b"$SYS.x"),
    ],
)
def test_expand(text: str, data: bytes) -> None:
    assert expand(text, NAMES) == data


@pytest.mark.parametrize(
    "data", [b"MSG u1234567 1 2\r\nhi\r\n", b"\x00\xff \\ \x7f\t", b"a" * 100 + b"b", b"ends "]
)
def test_escape_is_the_inverse(data: bytes) -> None:
    assert expand(escape(data, b"u1234567"), NAMES) == data


@pytest.mark.parametrize("text", ["${nobody}", "${sized {}", "${sized"])
def test_bad_macros(text: str) -> None:
    with pytest.raises(GoldenError):
        expand(text, NAMES)


def test_bad_lines(tmp_path: Path) -> None:
    for text in ("C: too early", "== a\nQ: what", "== a\nfeed backwards", "== a\n\n== a"):
        path = tmp_path / "bad.txt"
        path.write_text(text)
        with pytest.raises(GoldenError):
            read_transcript(path)


def test_joined_stops_at_other_connections_and_captures() -> None:
    lines = [("C", 1, "a"), ("S", 1, "x"), ("C", 1, "b"), ("C", 2, "c"), ("C", 1, "d")]
    lines += [("M", 1, "m1 1 x"), ("C", 1, "${m1}"), ("C", 1, "e"), ("X", 1, ""), ("C", 1, "f")]
    steps = joined([Step(kind, conn, text, 0) for kind, conn, text in lines])
    assert [(s.kind, s.text) for s in steps if s.kind == "C"] == [
        ("C", "ab"),
        ("C", "c"),
        ("C", "d"),
        ("C", "${m1}e"),
        ("C", "f"),
    ]


def test_match_json() -> None:
    unit = b'INFO {"a":1,"b":"xyz","c":true} \r\n'
    match_json('{"a": 1, "b": "~x.z", "c": true, "d": "!"}', unit)
    match_json('{"a": "*"}', unit)
    for wrong in ('{"a": "1"}', '{"b": "~y"}', '{"c": 1}', '{"a": "!"}', '{"d": "*"}'):
        with pytest.raises(PeerError):
            match_json(wrong, unit)
    with pytest.raises(PeerError):
        match_json("{}", b'INFO {"a":1}\r\n')  # no space before the line end


def test_every_scenario_says_something() -> None:
    """A scenario in which the server neither answers, closes nor is probed proves nothing."""
    for path in sorted(FOLDER.glob("n*/*.txt")):
        transcript = read_transcript(path)
        assert transcript.scenarios
        for scenario in transcript.scenarios:
            kinds = {s.kind for s in scenario.steps}
            assert kinds & {"S", "S~", "J", "M", "X", "E"}, scenario.identity
