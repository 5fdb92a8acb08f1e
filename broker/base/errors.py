"""An error as a peer gets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireError:
    """One error of one protocol."""

    text: str
    fatal: bool  # the connection is closed behind it
    source: str  # where the original says so
