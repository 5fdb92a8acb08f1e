"""Keys and tokens as far as a configuration names them: is it one, of which kind, what does it say.

A key is a kind, 32 bytes and a checksum in base 32; a token is three parts in base 64, signed.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_KINDS: Final = {
    "operator": 14 << 3,
    "account": 0,
    "user": 20 << 3,
    "curve": 23 << 3,
}
_SEED: Final = 18 << 3
_KEY_BYTES: Final = 32
_VERSION: Final = 2  # the newest of tokens
_ALGORITHMS: Final = {"ed25519": 1, "ed25519-nkey": 2}
# A token may stand between two lines of dashes, as in files of credentials.
_DECORATED: Final = re.compile(r"-{3,}[^\n]*[^-\n]-{3,}\n(.+)(?:\n-{3,}[^\n]*[^-\n]-{3,}(?:\n|\Z))")


def _decoded(text: str) -> bytes:
    """Without the checksum; empty if it is wrong."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (ValueError, binascii.Error):
        return b""
    body, check = raw[:-2], int.from_bytes(raw[-2:], "little")
    return body if len(raw) > 2 and binascii.crc_hqx(body, 0) == check else b""


def is_public(text: str, kind: str) -> bool:
    """Whether it is a public key: of an operator, account, user, or curve."""
    raw = _decoded(text)
    return len(raw) == 1 + _KEY_BYTES and raw[0] == _KINDS[kind]


def is_operator(text: str) -> bool:
    """Whether it is the public key of an operator."""
    return is_public(text, "operator")


def is_account(text: str) -> bool:
    """Whether it is the public key of an account."""
    return is_public(text, "account")


def is_user(text: str) -> bool:
    """Whether it is the public key of a user."""
    return is_public(text, "user")


def is_curve(text: str) -> bool:
    """Whether it is a public key to encrypt for."""
    return is_public(text, "curve")


def is_user_seed(text: str) -> bool:
    """Whether it is the private key of a user."""
    raw = _decoded(text)
    kind = _KINDS["user"]
    head = bytes((_SEED | kind >> 5, (kind & 31) << 3))
    return len(raw) == 2 + _KEY_BYTES and raw[:2] == head


def undecorated(text: str) -> str:
    """The token in the text of a file."""
    match = _DECORATED.search(text)
    return (match[1] if match else text).strip()


def claims(token: str, kind: str) -> dict[str, Any]:
    """What a token of this kind says, its signature checked; ValueError says what is wrong."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("a token has three parts")
    try:
        header, body = orjson.loads(_part(parts[0])), orjson.loads(_part(parts[1]))
        signature = _part(parts[2])
    except ValueError:
        raise ValueError("is no token") from None
    if not isinstance(header, dict) or not isinstance(body, dict):
        raise ValueError("is no token")
    version = _ALGORITHMS.get(str(header.get("alg")).lower())
    if version is None or str(header.get("typ")).lower() != "jwt":
        raise ValueError("is signed in an unknown way")
    about = body.get("nats")
    about = about if isinstance(about, dict) else {}
    if (body.get("type") or about.get("type")) != kind:
        raise ValueError(f"is not the token of an {kind}")
    newer = about.get("version", 0)
    if not isinstance(newer, int) or newer > _VERSION:
        raise ValueError("is of a newer version")
    issuer = body.get("iss")
    by_operator = isinstance(issuer, str) and is_operator(issuer)
    by_itself = kind == "account" and isinstance(issuer, str) and is_account(issuer)
    if not by_operator and not by_itself:
        raise ValueError("is issued by nobody who may")
    signed = parts[1] if version == 1 or body.get("type") else f"{parts[0]}.{parts[1]}"
    try:
        key = Ed25519PublicKey.from_public_bytes(_decoded(str(issuer))[1:])
        key.verify(signature, signed.encode())
    except InvalidSignature:
        raise ValueError("has a wrong signature") from None
    return body


def _part(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
