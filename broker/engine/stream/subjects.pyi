"""Which message of a stream has which subject."""

from array import array
from collections.abc import Iterable
from typing import Self, final

from broker.engine.stream.filter import Filter, FilterOwner

@final
class SubjectIndex(FilterOwner):
    messages: int
    size: int
    next_seq: int
    def __new__(cls) -> Self: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def memory(self) -> int: ...
    def filter(self, subjects: Iterable[str | bytes]) -> Filter | None: ...
    async def filter_in_turns(self, subjects: Iterable[str | bytes]) -> Filter | None: ...
    def last_per_subject(
        self, among: Filter | None = None, until: int | None = None
    ) -> array[int]: ...
