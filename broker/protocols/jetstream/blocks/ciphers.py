"""Encryption of nats-server's files.

    key of a file        HMAC-SHA256(key of the server, account + context)
    NAME.key             nonce + AEAD(that key) of a random seed of 32 bytes
    meta.inf, o.dat      nonce + AEAD(seed)
    N.blk                XOR with a key stream of the seed and the nonce of N.key

The context is `S` for a stream, `S:N` for its block N, `S.C` for its consumer C. With `chacha` it
is XChaCha20-Poly1305 with nonces of 24 bytes, with `aes` AES-256-GCM with nonces of 16 bytes and
AES-256-CTR. The length of a key file shows which of the two.
"""

from __future__ import annotations

import hmac
import struct
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

_SEED: Final = 32
_TAG: Final = 16
_NONCES: Final = {24 + _SEED + _TAG: 24, 16 + _SEED + _TAG: 16}  # by the length of a key file
_MASK: Final = 0xFFFFFFFF
_CONSTANT: Final = b"expand 32-byte k"
# The words of each quarter round: columns, then diagonals.
_QUARTERS: Final = (
    *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)


class CipherError(ValueError):
    """A file does not decrypt: the key is another one, or the file is damaged."""


def hchacha20(key: bytes, nonce: bytes) -> bytes:
    """The key of ChaCha20 for a key and the first 16 bytes of a long nonce."""
    words = list(struct.unpack("<16I", _CONSTANT + key + nonce))
    for _ in range(10):
        for quarter in _QUARTERS:
            _quarter_round(words, *quarter)
    return struct.pack("<8I", *words[:4], *words[12:])


def _quarter_round(words: list[int], a: int, b: int, c: int, d: int) -> None:
    for first, second, third, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        words[first] = (words[first] + words[second]) & _MASK
        mixed = words[third] ^ words[first]
        words[third] = (mixed << bits | mixed >> (32 - bits)) & _MASK


def _unseal(key: bytes, nonce: bytes, sealed: bytes) -> bytes:
    try:
        if len(nonce) == 16:
            return AESGCM(key).decrypt(nonce, sealed, None)
        inner = ChaCha20Poly1305(hchacha20(key, nonce[:16]))
        return inner.decrypt(bytes(4) + nonce[16:], sealed, None)
    except InvalidTag:
        raise CipherError("the key is another one, or the file is damaged") from None


class AssetKey:
    """The key of a stream, a consumer or a block: the content of its key file."""

    def __init__(self, server_key: str, account: str, context: str, sealed: bytes) -> None:
        """`sealed`: the content of the key file. CipherError: it does not decrypt."""
        size = _NONCES.get(len(sealed))
        if size is None:
            raise CipherError(f"a key file has {len(sealed)} bytes: no cipher has that many")
        key = hmac.digest(server_key.encode(), (account + context).encode(), sha256)
        self.nonce = sealed[:size]
        self.seed = _unseal(key, self.nonce, sealed[size:])

    def open(self, sealed: bytes) -> bytes:
        """The content of a small file. CipherError."""
        size = len(self.nonce)
        if len(sealed) < size + _TAG:
            raise CipherError("the file is too short")
        return _unseal(self.seed, sealed[:size], sealed[size:])

    def block(self, data: bytes) -> bytes:
        """The decrypted content of a block; it is not authenticated."""
        cipher: Cipher[modes.CTR | None]
        if len(self.nonce) == 16:
            cipher = Cipher(algorithms.AES(self.seed), modes.CTR(self.nonce))
        else:
            key = hchacha20(self.seed, self.nonce[:16])
            cipher = Cipher(algorithms.ChaCha20(key, bytes(8) + self.nonce[16:]), None)
        return cipher.encryptor().update(data)
