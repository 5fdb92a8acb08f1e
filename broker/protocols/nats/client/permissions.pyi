"""The permissions of one user by subject."""

from collections.abc import Iterable
from typing import final

from broker.protocols.nats.settings import Permissions, SubjectRule
from broker.runtime.interfaces import Sink

@final
class Patterns(Sink):
    def __init__(self, rules: Iterable[SubjectRule]) -> None: ...

@final
class Permit:
    permissions: Permissions
    responses: bool
    responses_max: int
    responses_expire_ns: int
    filter: Patterns | None
    def __init__(self, permissions: Permissions) -> None: ...
    def publish(self, subject: bytes) -> bool: ...
    def subscribe(self, subject: bytes, queue: bytes = b"") -> int: ...

def permit_for(permissions: Permissions | None) -> Permit | None: ...
