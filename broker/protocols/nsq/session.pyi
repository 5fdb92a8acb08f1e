from broker.core.cursor import Cursor
from broker.core.engine import Engine
from broker.core.seams import Session
from broker.core.turn import Turn
from broker.protocols.nsq.identify import Identity

class NsqFace:
    sessions: set[NsqSession]
    total_connections: int
    slow_consumers: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    engine: Engine
    config: object
    def __init__(self, engine: Engine, turn: Turn, config: object) -> None: ...
    def count_in(self, messages: int, nbytes: int) -> None: ...

class NsqSession(Session):
    cursor: Cursor | None
    identity: Identity
    start_ns: int
    link: object
    def __init__(self, face: NsqFace) -> None: ...
    def drain(self) -> None: ...
    def disconnect(self) -> None: ...
    def count_published(self) -> dict[str, int] | None: ...
    def numbers(self) -> tuple[int, int, int, int, int, int]: ...
    @property
    def remote_address(self) -> str: ...
