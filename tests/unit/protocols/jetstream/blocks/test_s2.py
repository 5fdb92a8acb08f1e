"""S2 is decompressed, and damage is noticed."""

from __future__ import annotations

import pytest

from broker.engine.log.record import crc32c
from broker.protocols.jetstream.blocks.s2 import CompressionError, decompress

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
