"""A set of filter subjects over the messages of one SubjectIndex."""

from typing import final

from typing_extensions import disjoint_base

@disjoint_base
class FilterOwner: ...

@final
class Filter:
    subjects: tuple[bytes, ...]
    total: int
    size: int
    wildcards: bool
    def __init__(self, subjects: tuple[bytes, ...]) -> None: ...

def is_valid(subject: bytes) -> bool: ...
def is_wildcard(subject: bytes) -> bool: ...
