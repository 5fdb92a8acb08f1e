"""The digest of a configuration: the same for files with the same values.

This is a separate module because log lines, answers and /varz show the digest, too.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.protocols.nats.conf.text import Map

# Go's JSON encoder writes these escaped.
_ESCAPED: Final = {ord(char): f"\\u{ord(char):04x}" for char in ("<", ">", "&", "\u2028", "\u2029")}


def digest_of(values: Map) -> str:
    """`sha256:` and the digest of the values as nats-server encodes them: JSON in the order of the
    keys, with a line end. Comments, blanks, includes and variables make no difference."""
    plain = {key: value.plain() for key, value in values.items()}
    text = json.dumps(
        plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_encode
    )
    return "sha256:" + hashlib.sha256(f"{text.translate(_ESCAPED)}\n".encode()).hexdigest()


def _encode(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    raise TypeError(type(value).__name__)
