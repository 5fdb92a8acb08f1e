"""A set of seqs, kept as runs of neighbours."""

from collections.abc import Iterator

from typing_extensions import disjoint_base

@disjoint_base
class SeqRuns:
    count: int
    def __contains__(self, key: int, /) -> bool: ...
    def __iter__(self) -> Iterator[tuple[int, int]]: ...
