"""Keys in the format of NATS: Ed25519 for signing, X25519 for sealing.

A public key is base32 of: prefix byte, 32 bytes, CRC-16 of both in little endian. The first letter,
which the prefix determines, is the kind of key: N server, C cluster, O operator, A account, U user,
X curve. A seed is base32 of 35 bits S and the prefix spread over two bytes, 32 bytes, CRC-16; its
second letter is the first letter of the public key.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING, Final

from nacl.bindings import (
    crypto_scalarmult_base,
    crypto_sign,
    crypto_sign_BYTES,
    crypto_sign_seed_keypair,
)

from broker.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from nacl.public import Box

SERVER: Final = "N"
CLUSTER: Final = "C"
OPERATOR: Final = "O"
ACCOUNT: Final = "A"
USER: Final = "U"
CURVE: Final = "X"

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PREFIXES: Final = {kind: _LETTERS.index(kind) << 3 for kind in "NCOAUX"}
_KINDS: Final = {prefix: kind for kind, prefix in _PREFIXES.items()}
_SEED: Final = _LETTERS.index("S") << 3
_RAW: Final = 32  # bytes of any key
_PUBLIC_LENGTH: Final = 56
_SEED_LENGTH: Final = 58

# A sealed message: version, nonce, then the result of crypto_box.
_SEALED: Final = b"xkv1"
_NONCE: Final = 24


def _crc16(data: bytes) -> int:
    """CRC-16/XMODEM."""
    return binascii.crc_hqx(data, 0)


def _armour(body: bytes) -> str:
    return base64.b32encode(body + _crc16(body).to_bytes(2, "little")).decode().rstrip("=")


def _unarmour(text: str) -> bytes:
    """Decode the bytes before the checksum; ValueError if that is wrong."""
    try:
        raw = base64.b32decode(text.encode("ascii") + b"=" * (-len(text) % 8))
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("not a key") from None
    if len(raw) < 4 or _crc16(raw[:-2]) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("not a key")
    return raw[:-2]


def encode(kind: str, raw: bytes) -> str:
    """The text of a public key."""
    if len(raw) != _RAW:
        raise ValueError("not a key")
    return _armour(bytes([_PREFIXES[kind]]) + raw)


def decode(text: str) -> tuple[str, bytes]:
    """The kind and the bytes of a public key; ValueError if it is invalid."""
    if len(text) != _PUBLIC_LENGTH:
        raise ValueError("not a public key")
    body = _unarmour(text)
    kind = _KINDS.get(body[0])
    if kind is None:
        raise ValueError("not a public key")
    return kind, body[1:]


def is_public(kind: str, text: str) -> bool:
    """Whether `text` is a public key of that kind."""
    try:
        return decode(text)[0] == kind
    except ValueError:
        return False


def is_any_public(text: str) -> bool:
    """Whether `text` is a public key of some kind."""
    try:
        decode(text)
    except ValueError:
        return False
    return True


def verify(public: str, message: bytes, signature: bytes) -> bool:
    """Whether the owner of `public` signed `message`."""
    # Imported at the first use, because few servers have clients that sign.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        kind, raw = decode(public)
        if kind == CURVE:
            return False
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, message)
    except (ValueError, InvalidSignature):
        return False
    return True


_URL_ONLY: Final = lazy_pattern(r"[A-Za-z0-9_-]*")


def from_base64(text: str) -> bytes:
    """URL base64 without padding; ValueError otherwise."""
    if _URL_ONLY.fullmatch(text) is None or len(text) % 4 == 1:
        raise ValueError("not URL base64")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def to_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_signature(text: str) -> bytes | None:
    """A signature of CONNECT: URL base64 without padding, or standard base64 with it."""
    try:
        return from_base64(text)
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def verify_nonce(public: str, nonce: bytes, signature: str) -> bool:
    """Whether CONNECT's `sig` is that key's signature of the nonce in INFO."""
    raw = decode_signature(signature) if signature and nonce else None
    return raw is not None and verify(public, nonce, raw)


def _seed(kind: str, raw: bytes) -> str:
    prefix = _PREFIXES[kind]
    return _armour(bytes([_SEED | prefix >> 5, (prefix & 31) << 3]) + raw)


def _unseed(text: str) -> tuple[str, bytes]:
    if len(text) != _SEED_LENGTH:
        raise ValueError("not a seed")
    body = _unarmour(text)
    kind = _KINDS.get((body[0] & 7) << 5 | body[1] >> 3)
    if body[0] & 0xF8 != _SEED or kind is None or len(body) != 2 + _RAW:
        raise ValueError("not a seed")
    return kind, body[2:]


class KeyPair:
    """A key that signs; repr() hides the secret."""

    __slots__ = ("_raw", "_secret", "kind", "public")

    def __init__(self, kind: str, raw: bytes | None = None) -> None:
        if kind == CURVE or kind not in _PREFIXES:
            raise ValueError("not a kind of key that signs")
        self.kind = kind
        self._raw = os.urandom(_RAW) if raw is None else raw
        public, self._secret = crypto_sign_seed_keypair(self._raw)
        self.public = encode(kind, public)

    @classmethod
    def from_seed(cls, seed: str) -> KeyPair:
        """The key of a seed; ValueError if it is invalid."""
        return cls(*_unseed(seed))

    @property
    def seed(self) -> str:
        return _seed(self.kind, self._raw)

    def sign(self, message: bytes) -> bytes:
        return crypto_sign(message, self._secret)[:crypto_sign_BYTES]

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"


class CurvePair:
    """Seals messages for the owner of another curve key, and opens that owner's messages."""

    __slots__ = ("_raw", "public")

    def __init__(self, raw: bytes | None = None) -> None:
        self._raw = os.urandom(_RAW) if raw is None else raw
        self.public = encode(CURVE, crypto_scalarmult_base(self._raw))

    @classmethod
    def from_seed(cls, seed: str) -> CurvePair:
        """The key of a seed; ValueError if it is invalid."""
        kind, raw = _unseed(seed)
        if kind != CURVE:
            raise ValueError("not the seed of a curve key")
        return cls(raw)

    @property
    def seed(self) -> str:
        return _seed(CURVE, self._raw)

    def seal(self, message: bytes, recipient: str, nonce: bytes | None = None) -> bytes:
        """Seal a message; ValueError if the recipient is not a curve key."""
        nonce = os.urandom(_NONCE) if nonce is None else nonce
        return _SEALED + nonce + self._box(recipient).encrypt(message, nonce).ciphertext

    def open(self, sealed: bytes, sender: str) -> bytes:
        """Open a message; ValueError unless the sender sealed it for this key."""
        from nacl.exceptions import CryptoError

        start = len(_SEALED) + _NONCE
        if len(sealed) <= start or not sealed.startswith(_SEALED):
            raise ValueError("not a sealed message")
        try:
            return self._box(sender).decrypt(sealed[start:], sealed[len(_SEALED) : start])
        except CryptoError:
            raise ValueError("the message cannot be opened") from None

    def _box(self, other: str) -> Box:
        # Built at the first use, because most servers never seal anything.
        from nacl.exceptions import CryptoError
        from nacl.public import Box, PrivateKey, PublicKey

        kind, raw = decode(other)
        if kind != CURVE:
            raise ValueError("not a curve key")
        try:
            return Box(PrivateKey(self._raw), PublicKey(raw))
        except CryptoError:
            raise ValueError("not a usable curve key") from None

    def __repr__(self) -> str:
        return f"CurvePair({self.public})"
