"""Subject transforms."""

from typing import final

@final
class Transform:
    source: str
    destination: str
    literal: bool
    def __init__(self, source: str, destination: str, strict: bool = False) -> None: ...
    def __call__(self, subject: bytes) -> bytes | None: ...

def is_within(subject: bytes, pattern: bytes) -> bool: ...
def overlap(one: bytes, other: bytes) -> bool: ...
