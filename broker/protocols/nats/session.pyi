"""One NATS connection as the broker sees it."""

from typing import Any, final

from broker.core.seams import Session
from broker.protocols.nats.face import NatsFace
from broker.protocols.nats.options import ClientOptions

@final
class NatsSession(Session):
    link: Any
    client_id: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    start_ns: int
    active_ns: int
    rtt_ns: int
    pings_out: int
    options: ClientOptions | None
    closed_because: str | None
    def __init__(self, face: NatsFace) -> None: ...
    @property
    def subscriptions(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
