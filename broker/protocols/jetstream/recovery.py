"""Opens the stored streams when the server starts. A damaged one harms no other."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from broker.protocols.jetstream.account import JetStreamAccount

log = logging.getLogger("broker.jetstream")


async def recover(root: Path, accounts: Mapping[str, JetStreamAccount]) -> None:
    """Open the streams of all accounts."""
