"""Finds which of many subjects may overlap with some, without comparing all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Owner = TypeVar("Owner")


class SubjectOwners(Generic[Owner]):
    """Owners of subjects, by the tokens before the first one that begins with a wildcard.

    Two subjects can overlap only if one of them begins with all of these tokens of the other.
    """

    def __init__(self) -> None:
        self._starts: dict[Owner, list[bytes]] = {}  # of an owner's subjects
        self._owners: dict[bytes, dict[Owner, None]] = {}  # of a start
        self._sorted: list[bytes] = []  # all starts

    def put(self, owner: Owner, subjects: Iterable[bytes]) -> None:
        """Set the subjects of an owner."""
        self.remove(owner)
        starts = self._starts[owner] = list({_start(subject): None for subject in subjects})
        for start in starts:
            if start not in self._owners:
                self._owners[start] = {}
                insort(self._sorted, start)
            self._owners[start][owner] = None

    def remove(self, owner: Owner) -> None:
        """Remove an owner, if it is one."""
        for start in self._starts.pop(owner, ()):
            del self._owners[start][owner]
            if not self._owners[start]:
                del self._owners[start]
                del self._sorted[bisect_left(self._sorted, start)]

    def near(self, subjects: Iterable[bytes]) -> Iterator[Owner]:
        """The owners of which a subject may overlap with one of these. One may come twice, and they
        must not change meanwhile."""
        last = None
        for start in sorted({_start(subject) for subject in subjects}):
            if last is None or not start.startswith(last):  # else all have come with `last`
                last = start
                yield from self._near(start)

    def _near(self, start: bytes) -> Iterator[Owner]:
        end = 0
        while end < len(start):
            yield from self._owners.get(start[:end], ())
            end = start.index(b".", end) + 1
        for index in range(bisect_left(self._sorted, start), len(self._sorted)):
            if not self._sorted[index].startswith(start):
                return
            yield from self._owners[self._sorted[index]]


def _start(subject: bytes) -> bytes:
    """The tokens before the first one that begins with a wildcard, each with a dot after it."""
    kept = []
    for token in subject.split(b"."):
        if token[:1] in {b"*", b">"}:
            break
        kept.append(token + b".")
    return b"".join(kept)
