"""A set of seqs, kept as runs of neighbours."""

from collections.abc import Iterator

class SeqRuns:
    count: int
    def __contains__(self, seq: int) -> bool: ...
    def __iter__(self) -> Iterator[tuple[int, int]]: ...
