"""The frames of WebSocket: whole, byte by byte, compressed, and wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.websocket import (
    BINARY,
    CLOSE,
    CONTINUE,
    FIN,
    PACKED,
    PING,
    PONG,
    TEXT,
    deflated,
    frame,
    inflated,
)
from support.native.filters import pack, unpack

from broker.net import errors, limits
from broker.net.filters import FilterError
from broker.net.websocket import WebSocket, accept_key


def test_key_of_the_standard() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@given(
    messages=st.lists(
        st.tuples(
            st.lists(st.binary(max_size=300), min_size=1, max_size=4),  # its fragments
            st.booleans(),  # compressed
            st.sampled_from([TEXT, BINARY]),
            st.sampled_from([0, 2, 8]),  # bytes of the length
            st.binary(min_size=4, max_size=4),  # mask
        ),
        max_size=4,
    ),
    step=st.integers(1, 700),
    room=st.integers(1, 2_000),
)
def test_any_fragments_make_one_stream(
    messages: list[tuple[list[bytes], bool, int, int, bytes]], step: int, room: int
) -> None:
    wire, want = b"", b""
    for parts, compressed, opcode, wide, mask in messages:
        whole = b"".join(parts)
        want += whole
        pieces, flags = parts, opcode
        if compressed:
            packed = deflated(whole)
            pieces = [packed[: len(packed) // 2], packed[len(packed) // 2 :]]
            flags |= PACKED
        for i, piece in enumerate(pieces):
            first = (flags if i == 0 else CONTINUE) | (FIN if i == len(pieces) - 1 else 0)
            wire += frame(first, piece, mask=mask, wide=wide) + frame(FIN | PONG, b"between")
    filter_ = WebSocket(compression=True)
    got = b"".join(unpack(filter_, wire[at : at + step], room) for at in range(0, len(wire), step))
    assert got == want
    assert not filter_.ended


@given(body=st.binary(max_size=200) | st.integers(1, 30_000).map(lambda n: b"abc" * n))
def test_what_we_send_comes_back(body: bytes) -> None:
    for options in ({}, {"compression": True}, {"compression": True, "frame_max": 100}):
        wire = pack(WebSocket(**options), body)
        assert unpack(WebSocket(compression=True, masked=False), wire) == body


def test_small_messages_are_not_compressed() -> None:
    small, large = b"a" * limits.WEBSOCKET_PACK_MIN, b"a" * (limits.WEBSOCKET_PACK_MIN + 1)
    wire = pack(WebSocket(compression=True), small)
    assert wire == frame(FIN | BINARY, small, mask=None)
    wire = pack(WebSocket(compression=True), large)
    assert wire[0] == FIN | PACKED | BINARY
    assert inflated(wire[2:]) == large


def test_frames_of_browsers_are_short() -> None:
    wire = pack(WebSocket(frame_max=10), b"x" * 25)
    assert wire == b"".join(frame(FIN | BINARY, b"x" * n, mask=None) for n in (10, 10, 5))


def test_compressed_fragments_are_one_message() -> None:
    body = bytes(i * i % 251 for i in range(3_000))
    wire, first, found = pack(WebSocket(compression=True, frame_max=100), body), [], b""
    while wire:
        first.append(wire[0])
        n = wire[1]
        assert n <= 100
        found, wire = found + wire[2 : 2 + n], wire[2 + n :]
    assert first[0] == PACKED | BINARY
    assert set(first[1:-1]) == {CONTINUE}
    assert first[-1] == FIN | CONTINUE
    assert inflated(found) == body


def test_last_blocks_end_a_message_not_the_connection() -> None:
    wire = frame(FIN | PACKED | BINARY, deflated(b"one", final=True) + b"\x00")
    got = unpack(WebSocket(compression=True), wire + frame(FIN | BINARY, b"two"))
    assert got == b"onetwo"


def test_ping_is_answered_once_for_all() -> None:
    filter_ = WebSocket()
    unpack(filter_, frame(FIN | PING, b"1") + frame(FIN | PING, b"2"))
    assert pack(filter_, b"") == frame(FIN | BINARY, b"", mask=None) + frame(
        FIN | PONG, b"2", mask=None
    )


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"", b""),
        (b"\x03", b""),
        (b"\x03\xe8", b"\x03\xe8"),
        (b"\x03\xe9going", b"\x03\xe9going"),
        (b"\x03\xe8\xff", b"\x03\xef" + errors.WEBSOCKET_NO_UTF8.encode()),
    ],
)
def test_close_is_answered(payload: bytes, answer: bytes) -> None:
    filter_ = WebSocket()
    assert unpack(filter_, frame(FIN | CLOSE, payload) + frame(FIN | BINARY, b"late")) == b""
    assert filter_.ended
    assert pack(filter_, b"nothing more") == frame(FIN | CLOSE, answer, mask=None)


def feed(filter_: WebSocket, wire: bytes, step: int) -> None:
    for at in range(0, len(wire), step):
        unpack(filter_, wire[at : at + step])


PART = frame(BINARY, b"PI")
WRONG = {
    errors.WEBSOCKET_UNMASKED: frame(FIN | BINARY, b"x", mask=None),
    errors.WEBSOCKET_RESERVED: frame(FIN | 0x20 | BINARY, b"x"),
    errors.WEBSOCKET_CONTROL_LONG: frame(FIN | PING, b"x" * 126),
    errors.WEBSOCKET_CONTROL_PART: frame(PING, b"x"),
    errors.WEBSOCKET_CONTROL_PACKED: frame(FIN | PACKED | PING, b"x"),
    errors.WEBSOCKET_INSIDE: PART + frame(FIN | TEXT, b"x"),
    errors.WEBSOCKET_CONTINUED: frame(FIN | CONTINUE, b"x"),
    errors.WEBSOCKET_OPCODE.format(3): frame(FIN | 3, b"x"),
    errors.WEBSOCKET_OPCODE.format(11): frame(FIN | 11, b"x"),
    errors.WEBSOCKET_LENGTH: b"\x82\xff" + b"\xff" * 8 + b"mask",
    errors.WEBSOCKET_PACKED: frame(FIN | PACKED | BINARY, deflated(b"x")),
}


@pytest.mark.parametrize("reason", WRONG)
@pytest.mark.parametrize("step", [1, 1000])
def test_wrong_frames_end_it_with_their_reason(reason: str, step: int) -> None:
    filter_, wire = WebSocket(), WRONG[reason]
    with pytest.raises(FilterError, match=reason):
        feed(filter_, wire, step)
    assert filter_.ended
    assert pack(filter_, b"") == frame(FIN | CLOSE, b"\x03\xea" + reason.encode(), mask=None)


def test_masks_where_none_were_agreed_on() -> None:
    with pytest.raises(FilterError, match=errors.WEBSOCKET_MASKED):
        unpack(WebSocket(masked=False), frame(FIN | BINARY, b"x"))


@pytest.mark.parametrize(
    "wire",
    [
        frame(FIN | PACKED | BINARY, b"\xff\xff\xff"),
        frame(PACKED | BINARY, b"") + frame(FIN | CONTINUE, b"\x00\x01\x00\x00\x00"),
    ],
)
def test_damaged_deflate(wire: bytes) -> None:
    with pytest.raises(FilterError, match=errors.WEBSOCKET_DEFLATE):
        unpack(WebSocket(compression=True), wire)
