"""The door for servers that join us as leafs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.net.listener import Door
from broker.protocols.nats.leafnodes import limits
from broker.protocols.nats.leafnodes.session import LeafSession

if TYPE_CHECKING:
    from broker.protocols.nats.leafnodes.leafnodes import LeafNodes


class LeafDoor(Door):
    """Accepts links."""

    def __init__(self, nodes: LeafNodes, listen: tuple[str, int]) -> None:
        super().__init__(nodes.server.runtime, listen, limits.NATS_LEAF_PENDING)
        self.nodes = nodes

    def new_session(self) -> LeafSession:
        return LeafSession(self.nodes.server.face, self.nodes.gate)
