"""State shared by all NATS connections of a server: limits, counters, open sessions."""

from typing import Any, final

from broker.runtime.turn import Turn

@final
class NatsFrontend:
    turn: Turn
    handshake: Any
    tracer: Any
    must_connect: bool
    connections_max: int
    payload_max: int
    ping_interval_ns: int
    sessions: set[Any]
    info_head: bytes
    total_connections: int
    slow_consumers: int
    stale: int
    stalls: int
    dropped: int
    def __init__(self, turn: Turn, config: Any) -> None: ...
    def configure(self, config: Any) -> None: ...
    def traffic(self) -> tuple[int, int, int, int]: ...
