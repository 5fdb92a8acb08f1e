"""S2 is decompressed, and damage is noticed; streams of it in both directions."""

from __future__ import annotations

import pytest
from support.native.filters import pack, unpack

from broker.engine.log.record import crc32c
from broker.net.filters import FilterError
from broker.net.s2 import S2, CompressionError, decompress

MAGIC = b"\xff\x06\x00\x00S2sTwO"


def chunk(kind: int, content: bytes, plain: bytes) -> bytes:
    crc = crc32c(plain)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    body = masked.to_bytes(4, "little") + content
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def varint(n: int) -> bytes:
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def compressed(plain: bytes, *ops: bytes) -> bytes:
    return MAGIC + chunk(0, varint(len(plain)) + b"".join(ops), plain)


def literal(text: bytes) -> bytes:
    n = len(text) - 1
    if n < 60:
        return bytes([n << 2]) + text
    size = (n.bit_length() + 7) // 8
    return bytes([(59 + size) << 2]) + n.to_bytes(size, "little") + text


REPEATS = {  # length -> the tag of a copy with the last distance
    4: b"\x01\x00",
    8: b"\x11\x00",
    9: b"\x15\x00\x01",
    263: b"\x15\x00\xff",
    264: b"\x19\x00\x04\x00",
    65795: b"\x19\x00\xff\xff",
    70000: b"\x1d\x00" + (70000 - 65540).to_bytes(3, "little"),
}


@pytest.mark.parametrize("size", [1, 60, 61, 256, 257, 70000])
def test_literals(size: int) -> None:
    text = bytes(i % 251 for i in range(size))
    assert decompress(compressed(text, literal(text))) == text


def test_copies_near_and_far() -> None:
    start = bytes(range(200)) * 400  # 80,000 bytes
    near = start + start[-5:][:4] + b"." + (start + start[-5:][:4] + b".")[-300:][:60]
    ops = [literal(start), b"\x01\x05", literal(b"."), b"\xee" + (300).to_bytes(2, "little")]
    assert decompress(compressed(near, *ops)) == near
    far = start + start[-70000:][:30]
    assert (
        decompress(compressed(far, literal(start), b"\x77" + (70000).to_bytes(4, "little"))) == far
    )


@pytest.mark.parametrize("length", REPEATS)
def test_repeats_of_the_last_distance(length: int) -> None:
    """After a copy of 4 with distance 3, which overlaps itself."""
    text = b"abc" + (b"abc" * 30000)[: 4 + length]
    ops = [literal(b"abc"), b"\x01\x03", REPEATS[length]]
    assert decompress(compressed(text, *ops)) == text


def test_chunks_of_all_kinds_follow_each_other() -> None:
    data = MAGIC + chunk(1, b"plain", b"plain") + b"\xfe\x02\x00\x00..\x80\x01\x00\x00."
    assert decompress(data + chunk(0, b"\x02" + literal(b"ab"), b"ab") + MAGIC) == b"plainab"
    assert decompress(b"") == b""


BAD = {
    "cut head": MAGIC[:3],
    "cut chunk": MAGIC[:-1],
    "unknown kind": b"\x02\x00\x00\x00",
    "short": b"\x01\x03\x00\x00abc",
    "checksum": chunk(1, b"plain", b"other"),
    "no length": chunk(0, b"\xff\xff\xff\xff\xff\x01", b""),
    "too long": chunk(0, varint(5 << 20), b""),
    "too little": chunk(0, b"\x05" + literal(b"ab"), b"ab"),
    "too much": chunk(0, b"\x01" + literal(b"ab"), b"a"),
    "literal past the end": chunk(0, b"\x09\x20ab", b""),
    "length past the end": chunk(0, b"\x09\xf4\x01", b""),
    "copy before the start": chunk(0, b"\x08" + literal(b"ab") + b"\x01\x05", b""),
    "copy of nothing": chunk(0, b"\x04\x01\x01", b""),
    "repeat of nothing": chunk(0, b"\x06" + literal(b"ab") + b"\x01\x00", b""),
    "cut copy": chunk(0, b"\x06" + literal(b"ab") + b"\x01", b""),
    "cut copy of 2": chunk(0, b"\x06" + literal(b"ab") + b"\x0e\x01", b""),
    "cut copy of 4": chunk(0, b"\x06" + literal(b"ab") + b"\x0f\x01\x00\x00", b""),
    "cut repeat": chunk(0, b"\x0e" + literal(b"ab") + b"\x01\x01\x1d\x00\x01", b""),
}


@pytest.mark.parametrize("name", BAD)
def test_damage_is_refused(name: str) -> None:
    with pytest.raises(CompressionError):
        decompress(BAD[name])


# --- streams


def test_what_is_sent() -> None:
    sender = S2()
    assert pack(sender, b"x") == MAGIC + chunk(1, b"x", b"x")
    assert pack(sender, b"y" * 1000) == chunk(1, b"y" * 1000, b"y" * 1000)
    sender.packs = True
    packed = pack(sender, b"y" * 1000)
    assert len(packed) < 100
    assert decompress(MAGIC + packed) == b"y" * 1000
    assert pack(sender, b"z" * 100) == chunk(1, b"z" * 100, b"z" * 100)
    large = bytes(range(256)) * 40_000
    sender.packs = False
    assert decompress(MAGIC + pack(sender, large)) == large


def test_what_is_received() -> None:
    """Another identifier, a second one, padding, and the longest copies."""
    text = b"abcd" * 20_000
    stream = b"\xff\x06\x00\x00sNaPpY" + chunk(1, b"a", b"a")
    stream += b"\xfe" + (70_000).to_bytes(3, "little") + bytes(70_000)
    ops = literal(b"abcd") + b"\x01\x04" + REPEATS[70000]
    rest = len(text) - 8 - 70_000
    ops += REPEATS[4] * (rest // 4)
    stream += compressed(text, ops) + chunk(1, b"z", b"z")
    assert unpack(S2(), stream, 65_536) == b"a" + text + b"z"


def test_a_limit_of_blocks_that_may_change() -> None:
    receiver = S2(block_max=1000)
    assert unpack(receiver, pack(S2(), b"x" * 1000), 65_536) == b"x" * 1000
    bomb = chunk(0, varint(70_004) + literal(b"abcd") + b"\x01\x04" + REPEATS[70000], b"")
    for large in (chunk(1, b"x" * 1001, b"x" * 1001), bomb):
        with pytest.raises(FilterError, match=r"^s2: "):
            unpack(S2(block_max=1000), MAGIC + large, 65_536)
    receiver.block_max = 1 << 20
    text = b"y" * 70_000
    assert unpack(receiver, chunk(1, text, text), 65_536) == text


DAMAGED = {
    "no identifier": chunk(1, b"a", b"a"),
    "another identifier": b"\xff\x06\x00\x00S2sTwo",
    "a long identifier": b"\xff\x07\x00\x00S2sTwO.",
    "a kind that is not known": MAGIC + chunk(2, b"a", b"a"),
    "too short for its checksum": MAGIC + b"\x01\x03\x00\x00abc",
    "too large": MAGIC + b"\x01" + ((4 << 20) + 5).to_bytes(3, "little"),
    "too large when unpacked": MAGIC + chunk(0, varint((4 << 20) + 1) + b"\x00a", b"a"),
    "a wrong checksum": MAGIC + chunk(1, b"a", b"b"),
    "a block without its end": MAGIC + chunk(0, varint(5) + b"\x10ab", b"ab..."),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_streams(what: str) -> None:
    with pytest.raises(FilterError, match=r"^s2: "):
        unpack(S2(), DAMAGED[what], 65_536)
