"""Finds overlaps among many subjects: one lookup in a set of patterns, instead of a comparison of
each pair.

Clients choose the lists of subjects that are compared, up to some thousands in one request
(JS_SUBJECTS_MAX). A set of patterns is a set of bits, one for each pattern, which each token of a
subject reduces. That costs one operation on such a set for each token of the subject: for n
patterns, n * n / 64 operations on machine words, whatever the patterns are. A search in a trie
would visit all of it for a subject that begins with `*`. A few patterns are compared one by one,
which is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.protocols.nats.accounts.subjects import collide, has_wildcard, lies_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_DIRECT: Final = 8  # up to this number, patterns are compared one by one
_FEW: Final = 4  # up to this number, positions are a list, which is smaller than a set of bits

# Indices of patterns, in order; a number if it is a set of bits already.
_Indices = list[int] | int


class _Level:
    """The tokens of the patterns at one position."""

    __slots__ = ("ends", "loose", "stars", "tails", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, _Indices] = {}
        self.stars: _Indices = []  # tokens that begin with *, as in the original
        self.loose: _Indices = []  # or with >
        self.tails: _Indices = []  # tokens >
        self.ends: _Indices = []  # patterns that end before this position


_NO_LEVEL: Final = _Level()


class PatternSet:
    """Subjects with wildcards for comparisons with others. They are valid subjects."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns: Sequence[str] = list(patterns)
        self._levels: list[_Level] = []
        self._same: dict[str, _Indices] = {}
        self._all = (1 << len(self.patterns)) - 1
        self._wild = 0
        if len(self.patterns) > _DIRECT:
            self._build()

    def _build(self) -> None:
        wild: list[int] = []
        for index, pattern in enumerate(self.patterns):
            _add_index(self._same, pattern, index)
            if self._add(index, pattern.split(".")):
                wild.append(index)
        self._wild = _bits(wild)

    def _add(self, index: int, tokens: list[str]) -> bool:
        """Add the tokens of a pattern. Returns whether it has wildcards."""
        while len(self._levels) <= len(tokens):
            self._levels.append(_Level())
        wild = False
        for level, part in zip(self._levels, tokens, strict=False):
            _add_index(level.tokens, part, index)
            if part[:1] not in {"*", ">"}:
                continue
            _append(level.loose, index)
            if part[0] == "*":
                _append(level.stars, index)
            elif part == ">":
                _append(level.tails, index)
            wild = wild or len(part) == 1
        _append(self._levels[len(tokens)].ends, index)
        return wild

    # --- queries

    def has_overlaps(self) -> bool:
        """Whether two of the patterns overlap."""
        return any(
            self._overlapping(pattern) & ~(1 << index)
            for index, pattern in enumerate(self.patterns)
        )

    def has_subsets(self) -> bool:
        """Whether one of the patterns is contained in another, or equal to another."""
        if len(set(self.patterns)) != len(self.patterns):
            return True
        return any(
            self._containing(pattern) & ~(1 << index) for index, pattern in enumerate(self.patterns)
        )

    def overlaps(self, subject: str) -> bool:
        """Whether a subject can match this one and one of the patterns."""
        return self._overlapping(subject) != 0

    def first_overlap(self, subject: str, among: int) -> str | None:
        """The first of the first `among` patterns that overlaps with a subject; None = none."""
        found = self._overlapping(subject) & ((1 << among) - 1)
        return self.patterns[(found & -found).bit_length() - 1] if found else None

    # --- sets of bits

    def _level(self, depth: int) -> _Level:
        return self._levels[depth] if depth < len(self._levels) else _NO_LEVEL

    def _overlapping(self, subject: str) -> int:
        """The patterns that a subject can match together with this one."""
        if not self._levels:
            return sum(
                1 << index
                for index, pattern in enumerate(self.patterns)
                if collide(pattern, subject)
            )
        tokens = subject.split(".")
        found = _set_of(self._same, subject)
        if "*" in tokens or ">" in tokens:
            return found | self._literals_in(tokens) | self._overlapping_wildcards(tokens)
        return found | self._containing(subject)

    def _containing(self, subject: str) -> int:
        """The patterns with wildcards that contain a subject."""
        if not self._levels:
            return sum(
                1 << index
                for index, pattern in enumerate(self.patterns)
                if has_wildcard(pattern) and lies_within(subject, pattern)
            )
        left, found = self._wild, 0
        if not left:
            return 0
        tokens = subject.split(".")
        for depth, part in enumerate(tokens):
            level = self._level(depth)
            found |= left & _cached(level, "tails")
            if part == ">":
                return found
            left &= _set_of(level.tokens, part) | (_cached(level, "stars") if part != "*" else 0)
            if not left:
                return found
        return found | (left & _cached(self._level(len(tokens)), "ends"))

    def _literals_in(self, tokens: list[str]) -> int:
        """The patterns without wildcards that a subject with wildcards contains."""
        left = self._all & ~self._wild
        for depth, part in enumerate(tokens):
            level = self._level(depth)
            left &= ~_cached(level, "ends")
            if part == ">" or not left:
                return left
            if part[:1] != "*":
                left &= _set_of(level.tokens, part)
        return left & _cached(self._level(len(tokens)), "ends")

    def _overlapping_wildcards(self, tokens: list[str]) -> int:
        """The patterns with wildcards that overlap with a subject with wildcards."""
        left, found = self._wild, 0
        for depth, part in enumerate(tokens):
            level = self._level(depth)
            left &= ~_cached(level, "ends")
            found |= left & _cached(level, "tails")
            if part[:1] not in {"*", ">"}:
                left &= _set_of(level.tokens, part) | _cached(level, "loose")
            if not left:
                return found
        if ">" in tokens:
            return found | left
        return found | (left & _cached(self._level(len(tokens)), "ends"))


def _add_index(table: dict[str, _Indices], key: str, index: int) -> None:
    indices = table.get(key)
    if indices is None:
        table[key] = [index]
    else:
        _append(indices, index)


def _append(indices: _Indices, index: int) -> None:
    assert isinstance(indices, list)  # sets of bits are made of it later
    indices.append(index)


def _set_of(table: dict[str, _Indices], key: str) -> int:
    indices = table.get(key)
    if indices is None:
        return 0
    if isinstance(indices, int):
        return indices
    found = _bits(indices)
    if len(indices) > _FEW:
        table[key] = found
    return found


def _cached(level: _Level, name: str) -> int:
    indices: _Indices = getattr(level, name)
    if isinstance(indices, int):
        return indices
    found = _bits(indices)
    if len(indices) > _FEW:
        setattr(level, name, found)
    return found


def _bits(indices: list[int]) -> int:
    if not indices:
        return 0
    if len(indices) <= _FEW:
        return sum(1 << index for index in indices)
    bits = bytearray(indices[-1] // 8 + 1)
    for index in indices:
        bits[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(bits, "little")
