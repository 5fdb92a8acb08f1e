"""Comparisons of subjects with wildcards: `*` is one token, a final `>` is one or more."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Owner = TypeVar("Owner")


def is_within(inner: bytes, outer: bytes) -> bool:
    """Whether every subject that `inner` matches is matched by `outer`."""
    tokens, wanted = inner.split(b"."), outer.split(b".")
    end, last = len(tokens) - 1, len(wanted) - 1
    for i, token in enumerate(wanted):
        if token == b">" and i == last:
            return end >= i
        if i > end or (tokens[i] == b">" and i == end):
            return False
        if token not in (b"*", tokens[i]):
            return False
    return end == last


def overlap(one: bytes, other: bytes) -> bool:
    """Whether a subject exists that both match. A `>` before the end counts as one at the end."""
    first, second = one.split(b"."), other.split(b".")
    for mine, yours in zip(first, second, strict=False):
        if b">" in (mine, yours):
            return True
        if mine != yours and b"*" not in (mine, yours):
            return False
    return len(first) == len(second)


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

    def near(self, subject: bytes) -> Iterator[Owner]:
        """The owners of which a subject may overlap with this one; an owner may come twice. They
        must not change meanwhile."""
        start = _start(subject)
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
