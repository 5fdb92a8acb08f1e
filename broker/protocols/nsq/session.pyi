"""The broker's side of one NSQ connection."""

from typing import Any, final

from broker.engine.cursor.cursor import Cursor
from broker.protocols.nsq.auth import Grant
from broker.protocols.nsq.authorization import AuthState
from broker.protocols.nsq.frontend import NsqFrontend
from broker.protocols.nsq.identify import Identity
from broker.protocols.stream_topic import StreamChannel
from broker.runtime.interfaces import Session

@final
class NsqSession(Session):
    cursor: Cursor | None
    channel: StreamChannel | None
    identity: Identity
    start_ns: int
    link: Any
    compression: str
    authorization: AuthState | None
    def __init__(self, frontend: NsqFrontend) -> None: ...
    def granted(self, grant: Grant | None) -> None: ...
    def drain(self) -> None: ...
    def disconnect(self) -> None: ...
    def count_published(self) -> dict[str, int] | None: ...
    def numbers(self) -> tuple[int, int, int, int, int, int]: ...
    @property
    def remote_address(self) -> str: ...
