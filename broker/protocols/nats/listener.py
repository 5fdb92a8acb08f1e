"""The door for NATS clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.net.listener import Door
from broker.protocols.nats.client.session import NatsSession

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.net.listener import Runtime
    from broker.protocols.nats.client.frontend import NatsFace


ANY_HOST = "0.0.0.0"  # noqa: S104 - what INFO says, as the original does


class NatsDoor(Door):
    """Accepts NATS clients."""

    def __init__(
        self, face: NatsFace, runtime: Runtime, listen: tuple[str, int], out_limit: int
    ) -> None:
        super().__init__(runtime, listen, out_limit)
        self.face = face

    def new_session(self) -> NatsSession:
        return NatsSession(self.face)

    @property
    def sessions(self) -> Collection[NatsSession]:
        """Open ones of all doors with this face, in no order."""
        return self.face.sessions

    @property
    def in_msgs(self) -> int:
        return self.face.traffic()[0]

    @property
    def in_bytes(self) -> int:
        return self.face.traffic()[1]

    @property
    def out_msgs(self) -> int:
        return self.face.traffic()[2]

    @property
    def out_bytes(self) -> int:
        return self.face.traffic()[3]

    @property
    def slow_consumers(self) -> int:
        return self.face.slow_consumers

    @property
    def stale(self) -> int:
        return self.face.stale
