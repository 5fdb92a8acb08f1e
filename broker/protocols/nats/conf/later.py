"""Keys of nats-server's configuration that came after 2.10 and are not available here.

They are unknown, but they are no typing mistakes, and the error says so. A key that a reader
learns to read needs no change here.
"""

from __future__ import annotations

from typing import Final

_TLS: Final = {"ca_certs_match": "2.11"}
# By the block's name in messages: key -> the first release that has it.
_KEYS: Final = {
    "tls": _TLS,
}


def remark(block: str, key: str) -> str:
    """What an error about an unknown key adds if a later nats-server has it; empty if none has."""
    kind = "account" if block.startswith("account ") else block
    release = _KEYS.get(kind, {}).get(key.lower())
    if release is None:
        return ""
    return f": a key of nats-server {release} and later, which is not available here"
