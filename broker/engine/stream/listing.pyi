"""A sorted list of the live subjects of a SubjectIndex."""

from typing import final

from broker.engine.stream.filter import Filter
from broker.engine.stream.subjects import SubjectIndex

@final
class SubjectList:
    size: int
    def __init__(self, index: SubjectIndex, among: Filter | None = None) -> None: ...
    def copy_more(self) -> bool: ...
    def sort(self, offset: int, limit: int) -> None: ...
    def part(self, first: int, limit: int) -> list[tuple[str, int]]: ...
