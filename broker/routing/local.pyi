"""A subscriber in Python that collects its messages in a list."""

from typing import final

from broker.routing.router import Router
from broker.runtime.interfaces import Sink

@final
class Subscriber(Sink):
    heard: list[tuple[bytes, bytes, bytes, bytes]]
    deaf: bool
    def __init__(self, router: Router) -> None: ...
    def subscribe(self, sid: bytes, subject: bytes, queue: bytes = b"") -> None: ...
    def unsubscribe(self, sid: bytes) -> None: ...
    def close(self) -> None: ...

def publish(
    router: Router,
    subject: bytes,
    data: bytes = b"",
    *,
    reply: bytes = b"",
    skip: Sink | None = None,
) -> int: ...
def subscribers(router: Router, subject: bytes) -> list[tuple[bytes, Sink]]: ...
def shape(subject: bytes) -> int: ...
