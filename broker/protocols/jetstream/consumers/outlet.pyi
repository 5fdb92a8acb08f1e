"""Sends messages and statuses of consumers to subjects of an account."""

from typing import Any, final

from broker.protocols.nats.accounts.account import Account
from broker.routing.router import Router
from broker.runtime.interfaces import Task
from broker.runtime.turn import Turn

@final
class Outlet(Task):
    account: Account
    router: Router
    turn: Turn
    def __init__(self, account: Account) -> None: ...
    def watch(self, subject: bytes, consumer: Any) -> None: ...
    def unwatch(self, subject: bytes, consumer: Any) -> None: ...
    def interest_changed(self, subject: bytes, queue: bytes, delta: int, sink: Any) -> None: ...
