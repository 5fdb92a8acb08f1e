"""WireError: an error as it is sent to a peer.

It is separate because every protocol lists its errors with it.
"""

from __future__ import annotations

from broker.base.values import dataclass


@dataclass(frozen=True, slots=True)
class WireError:
    """One error of one protocol."""

    text: str
    fatal: bool  # the connection is closed after it
    source: str  # the source in the original
