"""Stores of a nats-server 2.15 for tests: `plain`, and encrypted with `chacha` and `aes`.

In each: ORDERS keeps 3 messages of each of the subjects orders.0 to orders.3. Of its 16 messages
LEFT are left: limits removed 1 to 4, one was deleted, those of orders.2 were purged. Its consumer
`work` has had 5, and acknowledged 5 and 9. BIG has 526 messages of 8,000 bytes but the last, which
is `last`; its first block is compressed. EMPTY had 3 messages.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

FILE = Path(__file__).parents[1] / "unit" / "importers" / "stores" / "jetstream.tar.xz"
LEFT = [5, 6, 8, 9, 12, 13, 14, 16]
KEY = "correct horse battery staple"


def unpack(kind: str, folder: Path) -> Path:
    """A store in a new folder, as if its server had stopped long ago."""
    with tarfile.open(FILE) as stores:
        # Debian 12's tarfile has no filters.
        stores.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in stores.getmembers():
            if member.name.startswith(f"{kind}/"):
                stores.extract(member, folder)
    source = folder / kind
    for path in source.rglob("*.blk"):
        os.utime(path, (1, 1))
    return source
