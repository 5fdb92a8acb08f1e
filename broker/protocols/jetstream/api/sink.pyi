"""Receives the API requests of one account and passes them on in order."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, final

from broker.protocols.nats.accounts.account import Account
from broker.runtime.interfaces import Sink

class Request(NamedTuple):
    subject: bytes
    verb: bytes
    reply: bytes
    headers: bytes
    data: bytes
    session: Any

@final
class ApiSink(Sink):
    account: Account
    waiting: deque[Request]
    waiting_bytes: int
    dropped: int
    silent: bool
    busy: bool
    def __init__(
        self,
        account: Account,
        handle: Callable[[Request], object],
        overflow: Callable[[int], object],
        waiting_max: int,
        bytes_max: int = ...,
        now_ns: Callable[[], int] = ...,
    ) -> None: ...
    def listen(self, head: bytes) -> None: ...
    def close(self) -> None: ...
    def resume(self) -> None: ...
