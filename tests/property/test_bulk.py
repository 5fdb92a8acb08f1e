"""Frames: the compiled decoder against the one in Python."""

from __future__ import annotations

from fuzz.frames import check, check_same
from hypothesis import given
from hypothesis import strategies as st
from support.clients.frames import frame, header_block, record, resealed


def words(letters: str, least: int, most: int) -> st.SearchStrategy[str]:
    """Not st.text: that reads all of Unicode first, which takes seconds."""
    return st.lists(st.sampled_from(letters), min_size=least, max_size=most).map("".join)


WORDS = words("ab.\u00e9\u20ac\U0001f600", 0, 8)
TEXT = st.one_of(st.binary(max_size=12), WORDS.map(str.encode))
NAMES = st.sampled_from([b"K", b"Nats-Msg-Id", b"k", b"X", b"\xe2\x82", b"a b"])
PAIRS = st.lists(st.tuples(NAMES, TEXT), max_size=4)
BLOCKS = st.one_of(
    PAIRS.map(lambda pairs: header_block(*pairs)),
    st.lists(st.sampled_from([b"NATS/1.0", b"\r\n", b"\r", b"\n", b"K", b":", b" ", b"v"])).map(
        b"".join
    ),
)
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A good frame, or one with a little damage whose own sum is right again."""
    seq, records, gaps, first = draw(st.integers(1, 2**40)), [], [], 0
    first = seq
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.integers(0, 5)) == 0:
            gaps.append((seq, seq + 3, draw(st.integers(1, 2))))
            seq += 3
        made = record(
            seq, draw(st.binary(max_size=40)), subject=draw(TEXT), reply=draw(TEXT),
            headers=draw(BLOCKS), timestamp_ns=draw(INT64), not_before_ns=draw(INT64),
            flags=draw(st.integers(0, 255)),
        )  # fmt: skip
        records.append(made)
        seq += draw(st.integers(1, 3))
    data = bytearray(frame(records, first=first, behind=seq, gaps=gaps))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] ^= draw(st.integers(1, 255))
    return resealed(bytes(data))


@given(frames(), st.data())
def test_both_decoders_say_the_same(data: bytes, more: st.DataObject) -> None:
    pattern = more.draw(st.sampled_from([None, b">", b"*", b"a.*", b"*.>", b"t"]))
    check_same(
        data, b"t", b"K", pattern, more.draw(st.integers(1, 4)), more.draw(st.integers(1, 300))
    )


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    check(data)
    check(resealed(b"TWRANGE1" + data) if len(data) >= 56 else data)
