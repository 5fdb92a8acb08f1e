"""Finds overlaps among many subjects: one lookup in a set of patterns, instead of a comparison of
each pair.

Clients choose the lists of subjects that are compared, up to some thousands in one request
(JS_SUBJECTS_MAX). A set of patterns is a set of bits, one for each pattern, which the words of a
subject narrow one by one. That costs one operation on such a set for each token of the subject: for
n patterns, n * n / 64 operations on machine words, whatever the patterns are. A walk through a trie
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
_Places = list[int] | int


class _Level:
    """The words of the patterns at one position."""

    __slots__ = ("ends", "loose", "stars", "tails", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Places] = {}
        self.stars: _Places = []  # words that begin with *, as in the original
        self.loose: _Places = []  # or with >
        self.tails: _Places = []  # words >
        self.ends: _Places = []  # patterns that end before this position


_NO_LEVEL: Final = _Level()


class PatternSet:
    """Subjects with wildcards for comparisons with others. They are valid subjects."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns: Sequence[str] = list(patterns)
        self._levels: list[_Level] = []
        self._same: dict[str, _Places] = {}
        self._all = (1 << len(self.patterns)) - 1
        self._wild = 0
        if len(self.patterns) > _DIRECT:
            self._build()

    def _build(self) -> None:
        wild: list[int] = []
        for index, pattern in enumerate(self.patterns):
            _note(self._same, pattern, index)
            if self._add(index, pattern.split(".")):
                wild.append(index)
        self._wild = _bits(wild)

    def _add(self, index: int, words: list[str]) -> bool:
        """Add the words of a pattern. Returns whether it has wildcards."""
        while len(self._levels) <= len(words):
            self._levels.append(_Level())
        wild = False
        for level, word in zip(self._levels, words, strict=False):
            _note(level.words, word, index)
            if word[:1] not in {"*", ">"}:
                continue
            _append(level.loose, index)
            if word[0] == "*":
                _append(level.stars, index)
            elif word == ">":
                _append(level.tails, index)
            wild = wild or len(word) == 1
        _append(self._levels[len(words)].ends, index)
        return wild

    # --- questions

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
        words = subject.split(".")
        found = _set_of(self._same, subject)
        if "*" in words or ">" in words:
            return found | self._literals_in(words) | self._meeting(words)
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
        words = subject.split(".")
        for depth, word in enumerate(words):
            level = self._level(depth)
            found |= left & _cached(level, "tails")
            if word == ">":
                return found
            left &= _set_of(level.words, word) | (_cached(level, "stars") if word != "*" else 0)
            if not left:
                return found
        return found | (left & _cached(self._level(len(words)), "ends"))

    def _literals_in(self, words: list[str]) -> int:
        """The patterns without wildcards that a subject with wildcards contains."""
        left = self._all & ~self._wild
        for depth, word in enumerate(words):
            level = self._level(depth)
            left &= ~_cached(level, "ends")
            if word == ">" or not left:
                return left
            if word[:1] != "*":
                left &= _set_of(level.words, word)
        return left & _cached(self._level(len(words)), "ends")

    def _meeting(self, words: list[str]) -> int:
        """The patterns with wildcards that overlap with a subject with wildcards."""
        left, found = self._wild, 0
        for depth, word in enumerate(words):
            level = self._level(depth)
            left &= ~_cached(level, "ends")
            found |= left & _cached(level, "tails")
            if word[:1] not in {"*", ">"}:
                left &= _set_of(level.words, word) | _cached(level, "loose")
            if not left:
                return found
        if ">" in words:
            return found | left
        return found | (left & _cached(self._level(len(words)), "ends"))


def _note(table: dict[str, _Places], key: str, index: int) -> None:
    places = table.get(key)
    if places is None:
        table[key] = [index]
    else:
        _append(places, index)


def _append(places: _Places, index: int) -> None:
    assert isinstance(places, list)  # sets of bits are made of it later
    places.append(index)


def _set_of(table: dict[str, _Places], key: str) -> int:
    places = table.get(key)
    if places is None:
        return 0
    if isinstance(places, int):
        return places
    found = _bits(places)
    if len(places) > _FEW:
        table[key] = found
    return found


def _cached(level: _Level, name: str) -> int:
    places: _Places = getattr(level, name)
    if isinstance(places, int):
        return places
    found = _bits(places)
    if len(places) > _FEW:
        setattr(level, name, found)
    return found


def _bits(places: list[int]) -> int:
    if not places:
        return 0
    if len(places) <= _FEW:
        return sum(1 << index for index in places)
    bits = bytearray(places[-1] // 8 + 1)
    for index in places:
        bits[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(bits, "little")
