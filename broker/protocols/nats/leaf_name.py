"""How a leaf link is spoken of in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.protocols.nats.leaf_session import LeafSession


def name_of(session: LeafSession) -> str:
    """As the original begins what it logs of a link."""
    host = f"[{session.host}]" if ":" in session.host else session.host
    return f"{host}:{session.port} - lid:{session.client_id}"
