"""The keyed hashes of the tables whose keys are chosen by clients."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from broker.routing.trie import cache_hash, keyed_hash

MASK = 2**64 - 1
KEY = bytes(range(16))


def rotated(x: int, n: int) -> int:
    return (x << n | x >> 64 - n) & MASK


def siphash(key: bytes, data: bytes, each: int, last: int) -> int:
    """SipHash as its authors wrote it down, with so many rounds."""
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D]
    v += [k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = v[0] + v[1] & MASK
            v[2] = v[2] + v[3] & MASK
            v[1] = rotated(v[1], 13) ^ v[0]
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = rotated(v[0], 32)
            v[2] = v[2] + v[1] & MASK
            v[0] = v[0] + v[3] & MASK
            v[1] = rotated(v[1], 17) ^ v[2]
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = rotated(v[2], 32)

    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        rounds(each)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(last)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(0, 0x726FDB47DD0E0E31), (1, 0x74F839C593DC67FD), (15, 0xA129CA6149BE45E5)],
)
def test_the_reference(size: int, wanted: int) -> None:
    """Vectors that SipHash's authors published, of SipHash-2-4."""
    assert siphash(KEY, bytes(range(size)), 2, 4) == wanted


@pytest.mark.parametrize("size", [*range(40), 255, 256, 257, 1000])
def test_siphash_1_3(size: int) -> None:
    key, data = os.urandom(16), os.urandom(size)
    assert keyed_hash(key, data) == siphash(key, data, 1, 3)
    below = int.from_bytes(os.urandom(8), "little")
    assert keyed_hash(key, data, below) == siphash(key, below.to_bytes(8, "little") + data, 1, 3)


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="Python hashes otherwise")
def test_as_python_hashes() -> None:
    """Python's own, whose key follows from PYTHONHASHSEED."""
    texts = [bytes(range(size)) for size in range(1, 40)]
    source = f"print(*(hash(text) for text in {texts!r}))"
    printed = subprocess.run(
        [sys.executable, "-c", source],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    state, key = 7, bytearray()
    for _ in range(16):  # the generator that makes its key of the seed
        state = (state * 214013 + 2531011) & 0xFFFFFFFF
        key.append(state >> 16 & 0xFF)
    assert [int(word) & MASK for word in printed.split()] == [
        keyed_hash(bytes(key), text) for text in texts
    ]


PLAIN = b"A" * 16
FLIPPED = bytes(byte ^ (0x80 if at in {7, 11, 15} else 0) for at, byte in enumerate(PLAIN))


@pytest.mark.parametrize("hashed", [keyed_hash, cache_hash])
def test_no_names_collide_under_every_key(hashed: object) -> None:
    """Multiplying and folding once leaves bit 63 of a word where the next word can undo it."""
    assert callable(hashed)
    names = [
        b"".join(FLIPPED if number >> block & 1 else PLAIN for block in range(10))
        for number in range(1000)
    ]
    for _ in range(3):
        key = os.urandom(16)
        assert len({hashed(key, name) & 0xFFFFFFFF for name in names}) >= 999


def test_a_key_has_16_bytes() -> None:
    with pytest.raises(ValueError, match="16"):
        keyed_hash(b"short", b"")
