"""One accepted connection: moves bytes between a uvloop transport and a session."""

from asyncio import BaseTransport, BufferedProtocol
from typing import Any, final

from broker.core.inbuf import InBuf
from broker.core.outbuf import ChunkPool, OutBuf
from broker.core.seams import Session
from broker.core.turn import Turn

@final
class Conn(BufferedProtocol):
    out: OutBuf
    door: Any
    peer: tuple[str, int] | str
    def __init__(
        self,
        door: object,
        session: Session,
        shared: InBuf,
        turn: Turn,
        pool: ChunkPool,
        out_limit: int,
    ) -> None: ...
    def connection_made(self, transport: BaseTransport) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    @property
    def pending_bytes(self) -> int: ...
