"""The V2 scanner: what it makes of bytes, however they are cut."""

from __future__ import annotations

import itertools
import re
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fakes.nsq import mpub, pub, sized
from support.native.nsq import Scanner, message_id, message_seq

if TYPE_CHECKING:
    from support.scans import Op

KINDS = (
    "NONE", "PUB", "MPUB", "DPUB", "FIN", "REQ", "TOUCH", "RDY", "NOP", "CLS", "SUB", "IDENTIFY",
    "AUTH", "UNKNOWN",
)  # fmt: skip
WRONGS = (
    "NOTHING", "LINE", "STATE", "PARAMS", "TOPIC", "CHANNEL", "ID", "NUMBER", "RANGE", "SIZE",
    "BIG", "COUNT", "PART_SIZE", "PART_BIG", "TOTAL",
)  # fmt: skip
STAGES = ("LINE", "SIZE", "BODY", "COUNT", "PART_SIZE", "PART")
MESSAGE_MAX, BODY_MAX, DELAY_MAX_NS, READY_MAX = 100, 200, 10_000_000_000, 7
LINE_MAX = 16_384


def scanner() -> Scanner:
    return Scanner(MESSAGE_MAX, BODY_MAX, DELAY_MAX_NS, READY_MAX)


def scan_all(data: bytes, cuts: list[int]) -> tuple[list[Op], bytes]:
    """Every command up to the first wrong one, and the bytes left, scanned as a connection does."""
    state, rest, found = scanner(), b"", []
    edges = sorted({0, *cuts, len(data)})
    for start, end in itertools.pairwise(edges):
        rest += data[start:end]
        while rest:
            used, ops = state.scan(rest)
            found += [(*op[:-1], 0) for op in ops]
            rest = rest[used:]
            if any(op[1] for op in ops):
                return found, b""
            if not ops:
                break
    return found, rest


def one(line: bytes) -> tuple[str, str]:
    """Kind and mistake of the only command."""
    (op,) = scan_all(line, [])[0]
    return KINDS[op[0]], WRONGS[op[1]]


GOOD = [
    pub(b"t", b"hello"),
    pub(b"t", b"hello"),
    b"PUB t more\r\n" + sized(b"x\n\r"),
    pub(b"u.v#ephemeral", b"\x00" * 100),
    b"DPUB t 10000\n" + sized(b"later"),
    mpub(b"t", b"a", b"bc", b"d" * 100),
    b"MPUB t\n" + struct.pack(">ii", 1, 2) + sized(b"lied") + sized(b"about"),
    b"FIN 00000000000000ff\n",
    b"FIN 00000000000000ff\r\n",
    b"FIN nothexnothexnot!\n",
    b"REQ 0000000000000001 5000\n",
    b"TOUCH 0000000000000001 x\n",
    b"RDY 7\n",
    b"RDY\n",
    b"NOP\n",
    b"CLS\n",
    b"SUB t c\n",
    b"IDENTIFY\n" + sized(b"{}"),
    b"AUTH\n" + sized(b"secret"),
]
ALL = b"".join(GOOD)


def test_whole() -> None:
    ops, rest = scan_all(ALL, [])
    assert rest == b""
    assert [KINDS[op[0]] for op in ops] == [
        *["PUB"] * 4, "DPUB", "MPUB", "MPUB", "FIN", "FIN", "FIN", "REQ", "TOUCH", "RDY", "RDY",
        "NOP", "CLS", "SUB", "IDENTIFY", "AUTH",
    ]  # fmt: skip
    assert {op[1] for op in ops} == {0}
    assert [op[3] for op in ops[:5]] == [b"hello", b"hello", b"x\n\r", b"\x00" * 100, b"later"]
    assert [op[4] for op in ops[7:10]] == [255, 255, 0]
    assert [op[6] for op in ops[5:7]] == [3, 2]
    assert (ops[10][5], ops[12][4], ops[13][4]) == (5000, 7, 1)
    assert ops[16][2:4] == (b"t", b"c")


def test_byte_by_byte_and_with_a_begun_command_behind() -> None:
    whole = scan_all(ALL, [])[0]
    assert scan_all(ALL, list(range(len(ALL)))) == (whole, b"")
    assert scan_all(ALL + b"PUB t\n\0\0", list(range(len(ALL) + 8))) == (whole, b"PUB t\n\0\0")


@given(st.lists(st.sampled_from(GOOD)), st.lists(st.integers(0, 2_000)), st.binary(max_size=30))
def test_cut_anywhere(parts: list[bytes], cuts: list[int], junk: bytes) -> None:
    data = b"".join(parts) + junk
    assert scan_all(data, [c for c in cuts if c < len(data)]) == scan_all(data, [])


@pytest.mark.parametrize(
    ("line", "kind", "wrong"),
    [
        (b"\n", "UNKNOWN", "NOTHING"),
        (b"pub t\n", "UNKNOWN", "NOTHING"),
        (b"PUB\n", "PUB", "PARAMS"),
        (b"PUB \n", "PUB", "TOPIC"),
        (b"PUB t\r\r\n", "PUB", "TOPIC"),
        (b"DPUB t\n", "DPUB", "PARAMS"),
        (b"DPUB t x\n", "DPUB", "NUMBER"),
        (b"DPUB t 10001\n", "DPUB", "RANGE"),
        (b"SUB t\n", "SUB", "PARAMS"),
        (b"SUB t #ephemeral\n", "SUB", "CHANNEL"),
        (b"FIN\n", "FIN", "PARAMS"),
        (b"FIN 123\n", "FIN", "ID"),
        (b"FIN 0123 56789abcdef\n", "FIN", "ID"),
        (b"REQ 0000000000000001\n", "REQ", "PARAMS"),
        (b"REQ 0000000000000001 -1\n", "REQ", "NUMBER"),
        (b"RDY -1\n", "RDY", "NUMBER"),
        (b"RDY 8\n", "RDY", "RANGE"),
        (b"RDY 9223372036854775808\n", "RDY", "RANGE"),
        (b"AUTH x\n", "AUTH", "PARAMS"),
        (b"PUB t\n" + struct.pack(">i", 0), "PUB", "SIZE"),
        (b"PUB t\n" + struct.pack(">i", 101), "PUB", "BIG"),
        (b"MPUB t\n" + struct.pack(">i", 201), "MPUB", "BIG"),
        (b"MPUB t\n" + struct.pack(">ii", 9, 0), "MPUB", "COUNT"),
        (b"MPUB t\n" + struct.pack(">ii", 9, 40), "MPUB", "COUNT"),
        (b"MPUB t\n" + struct.pack(">iii", 9, 1, -1), "MPUB", "PART_SIZE"),
        (b"MPUB t\n" + struct.pack(">iii", 9, 1, 101), "MPUB", "PART_BIG"),
        (mpub(b"t", b"a" * 96, b"b" * 93), "MPUB", "BIG"),
        (
            b"MPUB t\n" + struct.pack(">ii", 1, 2) + sized(b"a" * 96) + sized(b"b" * 93),
            "MPUB",
            "TOTAL",
        ),
        (b"x" * LINE_MAX, "NONE", "LINE"),
        (b"NOP " + b"x" * (LINE_MAX - 5) + b"\n", "NOP", "NOTHING"),
        (b"NOP " + b"x" * (LINE_MAX - 4) + b"\n", "NONE", "LINE"),
    ],
)
def test_one_command(line: bytes, kind: str, wrong: str) -> None:
    assert one(line) == (kind, wrong)
    assert scan_all(line, list(range(len(line))))[0] == scan_all(line, [])[0]


def test_a_body_of_just_the_limit() -> None:
    assert one(mpub(b"t", b"a" * 96, b"b" * 92)) == ("MPUB", "NOTHING")


def test_late_identify_is_known_from_its_line() -> None:
    state = scanner()
    state.unsubscribed = False
    _, [op] = state.scan(b"IDENTIFY\n")
    assert WRONGS[op[1]] == "STATE"


def test_commands_that_change_what_is_legal_end_a_scan() -> None:
    used, ops = scanner().scan(b"NOP\nSUB t c\nNOP\n")
    assert (used, len(ops)) == (12, 2)


@pytest.mark.parametrize(
    ("data", "kind", "stage", "parts", "need"),
    [
        (b"PUB t", "NONE", "LINE", 0, 0),
        (b"PUB t\n\0", "PUB", "SIZE", 0, 10),
        (b"PUB t\n\0\0\0\5ab", "PUB", "BODY", 0, 15),
        (b"MPUB t\n", "MPUB", "SIZE", 0, 15),
        (b"MPUB t\n\0\0\0\x20\0", "MPUB", "COUNT", 0, 15),
        (b"MPUB t\n\0\0\0\x20\0\0\0\2", "MPUB", "PART_SIZE", 0, 43),
        (b"MPUB t\n\0\0\0\1\0\0\0\2" + sized(b"a") + b"\0\0\0\x20", "MPUB", "PART", 1, 56),
    ],
)
def test_unfinished(data: bytes, kind: str, stage: str, parts: int, need: int) -> None:
    state = scanner()
    assert state.scan(data) == (0, [])
    found = state.unfinished
    assert (KINDS[found[0]], STAGES[found[1]], found[2], found[3]) == (kind, stage, parts, need)


@given(st.integers(1, 2**64 - 1))
def test_ids(seq: int) -> None:
    assert message_id(seq) == b"%016x" % seq
    assert message_seq(message_id(seq)) == seq


@given(st.binary(min_size=16, max_size=16))
@example(b"00000000000000FF")
@example(b"000000000000000g")
@example(b"00000000000000\xb1\xb1")
@example(b"/000000000000000")
@example(b"00000000`0000000")
def test_what_is_no_id_has_seq_0(text: bytes) -> None:
    expected = int(text, 16) if re.fullmatch(rb"[0-9a-f]{16}", text) else 0
    assert message_seq(text) == expected
