"""What all NATS connections of a server share: limits, counters, who is there."""

from typing import Any, final

from broker.core.router import Router
from broker.core.turn import Turn
from broker.protocols.nats.session import NatsSession

@final
class NatsFace:
    router: Router
    sessions: set[NatsSession]
    info_head: bytes
    total_connections: int
    slow_consumers: int
    stale: int
    def __init__(self, router: Router, turn: Turn, config: Any, info_head: bytes) -> None: ...
    def traffic(self) -> tuple[int, int, int, int]: ...
