"""Publishing from Python code."""

from asyncio import Future
from typing import final

from broker.engine.log.log import Log
from broker.runtime.interfaces import Session

@final
class Waiter(Session):
    def __init__(self, future: Future[None]) -> None: ...

async def publish(log: Log, bodies: list[bytes], not_before_ns: int = 0) -> None: ...
async def settled(log: Log, ticket: int) -> None: ...
def append(
    log: Log,
    body: bytes,
    *,
    headers: bytes = b"",
    reply: bytes = b"",
    subject: bytes = b"",
    not_before_ns: int = 0,
    flags: int = 0,
) -> int: ...
def outcome(log: Log, ticket: int) -> int: ...
def failure(log: Log, ticket: int) -> str: ...
def check_appends(log: Log) -> None: ...
def append_at(
    log: Log, body: bytes, timestamp_ns: int, reader: bytes = b"", reply: bytes = b""
) -> int: ...
