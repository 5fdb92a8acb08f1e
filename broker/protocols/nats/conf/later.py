"""Keys of nats-server's configuration that are newer than 2.10 and not available here.

They are unknown keys; the error names the release that has them, because they are not typing
mistakes.
"""

from __future__ import annotations

from typing import Final

_TLS: Final = {"ca_certs_match": "2.11"}
# By the block's name in messages: key -> the first release that has it.
_KEYS: Final = {
    "tls": _TLS,
}


def remark(block: str, key: str) -> str:
    """The end of the error about an unknown key that a later nats-server has; else empty."""
    kind = "account" if block.startswith("account ") else block
    release = _KEYS.get(kind, {}).get(key.lower())
    if release is None:
        return ""
    return f": a key of nats-server {release} and later, which is not available here"
