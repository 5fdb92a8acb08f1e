"""The router for Python code: publish a message, list the subscribers of a subject."""

from broker.routing.router import Router
from broker.runtime.interfaces import Sink

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
