"""Receives the messages of an origin on another server."""

from collections.abc import Callable
from typing import final

from broker.protocols.jetstream.origins.copier import Copier
from broker.protocols.nats.accounts.account import Account
from broker.runtime.interfaces import Sink

@final
class Receiver(Sink):
    account: Account
    subject: bytes
    delivered: int
    ended: bool
    def __init__(
        self, copier: Copier, subject: bytes, on_end: Callable[[], object], restarts: bool = False
    ) -> None: ...
    def open(self) -> None: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...
