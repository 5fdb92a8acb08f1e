"""A session as far as the log of nats-server names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

WHO = "127.0.0.1:4 - cid:5"


def session(**more: Any) -> Any:
    """One that is logged as WHO, with more attributes."""
    one = SimpleNamespace(
        host="127.0.0.1",
        port=4,
        client_id=5,
        kind="STANDARD",
        account=None,
        extra=None,
        closed_because="Gone",
    )
    vars(one).update(more)
    return one
