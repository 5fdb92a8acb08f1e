"""State shared by all connections of one NSQ listener."""

from typing import final

from broker.engine.engine import Engine
from broker.protocols.access import Access
from broker.protocols.nsq.auth import Authority
from broker.runtime.interfaces import Session
from broker.runtime.turn import Turn

@final
class NsqFrontend:
    sessions: set[Session]
    total_connections: int
    slow_consumers: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    engine: Engine
    config: object
    certificates: object | None
    authority: Authority | None
    access: Access
    def __init__(
        self,
        engine: Engine,
        turn: Turn,
        config: object,
        certificates: object | None = None,
        authority: Authority | None = None,
        access: Access | None = None,
    ) -> None: ...
    def count_in(self, messages: int, nbytes: int) -> None: ...
