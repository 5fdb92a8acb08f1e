"""A subscriber in Python: what the router delivers ends in a list."""

from typing import final

from broker.routing.router import Router
from broker.runtime.interfaces import Sink

@final
class Subscriber(Sink):
    """Receives messages of the router."""

    received: list[tuple[bytes, bytes, bytes, bytes]]  # sid, subject, reply, data; in order
    refuses: bool  # takes nothing: the next member of a group is asked
    def __init__(self, router: Router) -> None: ...
    def subscribe(self, sid: bytes, subject: bytes, queue: bytes = b"") -> None: ...
    def unsubscribe(self, sid: bytes) -> None: ...
    def close(self) -> None: ...
