"""Frames made smaller for slow links, if the client asks for it."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from cramjam import zstd

from broker.bulk import limits

if TYPE_CHECKING:
    from broker.engine.bulk.ranges import Range

ZSTD = "zstd"
GZIP = "gzip"
_ENTRY = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?")
_GZIP_WINDOW = 31  # zlib's word for a gzip header and the largest window


def encoding_of(accepted: str) -> str | None:
    """What an Accept-Encoding header lets us use: the one it likes best, zstd among equals; None
    to send the frame as it is."""
    weights = {}
    for entry in accepted.split(","):
        found = _ENTRY.fullmatch(entry)
        if found is not None:
            try:
                weights[found[1].lower()] = float(found[2] or 1)
            except ValueError:
                continue
    best = max((ZSTD, GZIP), key=lambda name: weights.get(name, 0))
    weight = weights.get(best, 0)
    return best if weight > 0 and weight >= weights.get("identity", 0) else None


def compressed(encoding: str, found: Range, head: bytes) -> bytes:
    """The whole frame; on any thread."""
    whole = found.joined(head)
    if encoding == GZIP:
        return zlib.compress(whole, limits.BULK_GZIP_LEVEL, _GZIP_WINDOW)
    return bytes(zstd.compress(whole, limits.BULK_ZSTD_LEVEL))
