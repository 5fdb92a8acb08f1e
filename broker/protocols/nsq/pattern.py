"""Go's regular expressions (RE2 syntax) on the names of topics and channels.

An auth server says in patterns what a client may do, and the client chooses the names they are
tried on. So no pattern may take long: it becomes a list of steps, and all ways through it are
followed at once, one character of the name after the other (never more work than steps times
characters). Names of NSQ are ASCII, so a class of characters is a set of ASCII characters. The bulk
door has names with others too: OTHER in a set stands for all of those that are not in it.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.protocols.nsq import limits

Chars = frozenset[str]

OTHER: Final = "\U0010ffff"  # no character
_ASCII: Final = Chars(map(chr, range(128)))
_ALL: Final = _ASCII | {OTHER}
_DIGITS: Final = Chars(string.digits)
_WORD: Final = Chars(string.ascii_letters + string.digits + "_")
_PERL: Final = {"d": _DIGITS, "s": Chars("\t\n\f\r "), "w": _WORD}
_POSIX: Final = {
    "alnum": Chars(string.ascii_letters + string.digits),
    "alpha": Chars(string.ascii_letters),
    "ascii": _ASCII,
    "blank": Chars("\t "),
    "cntrl": Chars(c for c in _ASCII if ord(c) < 32 or ord(c) == 127),
    "digit": _DIGITS,
    "graph": Chars(c for c in _ASCII if 32 < ord(c) < 127),
    "lower": Chars(string.ascii_lowercase),
    "print": Chars(c for c in _ASCII if 32 <= ord(c) < 127),
    "punct": Chars(string.punctuation),
    "space": Chars("\t\n\v\f\r "),
    "upper": Chars(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": Chars(string.hexdigits),
}
_NAMED: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CATEGORIES: Final = re.compile("L[ultmo]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[slp]?|C[cfso]?")
_REPEAT: Final = re.compile(r"\{(\d{1,9})(,(\d{1,9})?)?\}", re.ASCII)
_GROUP: Final = re.compile(r"\?P?<(\w+)>", re.ASCII)
_FLAGS: Final = re.compile(r"\?([imsU]*)(-[imsU]+)?([:)])")
_POSIX_NAME: Final = re.compile(r"\[:(\^?)(\w+):\]", re.ASCII)
_CODE: Final = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,8})\})|([0-7]{2,3}|0)")
_CATEGORY: Final = re.compile(r"([pP])(?:\{(\^?)(\w+)\}|([A-Z]))", re.ASCII)


class PatternError(ValueError):
    """Not a pattern, or too large a one."""


class Step(NamedTuple):
    """One step of a compiled pattern."""

    chars: Chars | None = None  # takes one of these
    place: str = ""  # or goes on only here: ^ $ b B
    ways: tuple[int, ...] = ()  # or goes on at these steps


class Node(NamedTuple):
    """A part of a pattern: a step, a row or a choice of parts, or one part repeated."""

    kind: str  # step row choice repeat
    step: Step = Step()
    parts: tuple[Node, ...] = ()
    low: int = 0
    high: int | None = None


class Pattern:
    """One compiled pattern; PatternError when Go would refuse it, or it is too large."""

    def __init__(self, text: str) -> None:
        if len(text) > limits.NSQ_AUTH_PATTERN_LENGTH:
            raise PatternError("too long")
        self._steps: list[Step] = []
        self._visits = 0
        self._emit(_Parser(text).parse())
        self._end = len(self._steps)

    @property
    def size(self) -> int:
        """Its number of steps."""
        return self._end

    def found_in(self, name: str) -> bool:
        """Whether it matches somewhere in the name."""
        states: set[int] = set()
        for at in range(len(name) + 1):
            self._follow(states, 0, name, at)
            if self._end in states:
                return True
            if at < len(name):
                states = self._after(states, name, at)
        return False

    def whole(self, name: str) -> Iterator[bool]:
        """The last one says whether it matches the whole name; False before each character, for
        others to have their turn."""
        states: set[int] = set()
        self._follow(states, 0, name, 0)
        for at in range(len(name)):
            yield False
            states = self._after(states, name, at)
            if not states:
                return
        yield self._end in states

    def _after(self, states: set[int], name: str, at: int) -> set[int]:
        """Where the ways go on that can take the character there."""
        char, reached = name[at], set[int]()
        for number in states:
            chars = self._steps[number].chars if number < self._end else None
            if chars and (char in chars or (OTHER in chars and char not in _ASCII)):
                self._follow(reached, number + 1, name, at + 1)
        return reached

    def _follow(self, states: set[int], first: int, name: str, at: int) -> None:
        """Add a step, and all that can be reached from it without taking a character."""
        waiting = [first]
        while waiting:
            number = waiting.pop()
            if number in states:
                continue
            states.add(number)
            if number == self._end:
                continue
            step = self._steps[number]
            if step.place:
                if _is_at(step.place, name, at):
                    waiting.append(number + 1)
            elif step.chars is None:
                waiting += step.ways

    def _put(self, step: Step) -> int:
        if len(self._steps) >= limits.NSQ_AUTH_PATTERN_STEPS:
            raise PatternError("expression too large")
        self._steps.append(step)
        return len(self._steps) - 1

    def _emit(self, node: Node) -> None:
        self._visits += 1  # a group repeated may put no step at all
        if self._visits > limits.NSQ_AUTH_PATTERN_STEPS * 2:
            raise PatternError("expression too large")
        if node.kind == "step":
            self._put(node.step)
        elif node.kind == "row":
            for part in node.parts:
                self._emit(part)
        elif node.kind == "choice":
            forks = []
            for part in node.parts:
                fork = self._put(Step())
                self._emit(part)
                forks.append((fork, self._put(Step())))
            end = len(self._steps)
            for number, (fork, leave) in enumerate(forks):
                others = (forks[number + 1][0],) if number + 1 < len(forks) else ()
                self._steps[fork] = Step(ways=(fork + 1, *others))
                self._steps[leave] = Step(ways=(end,))
        else:
            self._emit_repeat(node)

    def _emit_repeat(self, node: Node) -> None:
        part = node.parts[0]
        for _ in range(node.low):
            self._emit(part)
        if node.high is None:
            fork = self._put(Step())
            self._emit(part)
            again = self._put(Step(ways=(fork,)))
            self._steps[fork] = Step(ways=(fork + 1, again + 1))
            return
        forks = []
        for _ in range(node.high - node.low):
            forks.append(self._put(Step()))
            self._emit(part)
        for fork in forks:
            self._steps[fork] = Step(ways=(fork + 1, len(self._steps)))


def _is_at(place: str, name: str, at: int) -> bool:
    if place == "^":
        return at == 0
    if place == "$":
        return at == len(name)
    before = at > 0 and name[at - 1] in _WORD
    after = at < len(name) and name[at] in _WORD
    return (before != after) == (place == "b")


def _one(char: str) -> Node:
    return Node("step", Step(chars=Chars(char)))


def _place(place: str) -> Node:
    return Node("step", Step(place=place))


class _Parser:
    """Reads one pattern; `fold` and `dot` are the flags i and s where it is now."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.fold = False
        self.dot = _ALL - {"\n"}

    def parse(self) -> Node:
        node = self._choice()
        if self.at < len(self.text):
            raise PatternError("unexpected )")
        return node

    def _take(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def _choice(self) -> Node:
        self.depth += 1
        if self.depth > limits.NSQ_AUTH_PATTERN_DEPTH:
            raise PatternError("expression nests too deeply")
        rows = [self._row()]
        while self._take("|"):
            rows.append(self._row())
        self.depth -= 1
        return rows[0] if len(rows) == 1 else Node("choice", parts=tuple(rows))

    def _row(self) -> Node:
        parts: list[Node] = []
        repeatable = repeated = False
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if (bounds := self._bounds()) is not None:
                if not repeatable:
                    raise PatternError("missing argument to repetition operator")
                if repeated:
                    raise PatternError("invalid nested repetition operator")
                parts[-1] = Node("repeat", parts=(parts[-1],), low=bounds[0], high=bounds[1])
                repeated = True
                self._take("?")
                continue
            count = len(parts)
            parts += self._atom()
            repeatable, repeated = repeatable or len(parts) > count, False
        return Node("row", parts=tuple(parts))

    def _bounds(self) -> tuple[int, int | None] | None:
        """A repetition operator, if one stands here."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        found = self._match(_REPEAT)
        if found is None:
            return None
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else None
        most = low if high is None else high
        if most > limits.NSQ_AUTH_PATTERN_REPEAT or most < low:
            raise PatternError("invalid repeat count")
        return low, high

    def _atom(self) -> list[Node]:
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group()
        if char == "\\":
            return self._escaped()
        if char == "[":
            return [self._class()]
        if char in "^$":
            return [_place(char)]
        return [Node("step", Step(chars=self.dot)) if char == "." else self._folded(Chars(char))]

    def _escaped(self) -> list[Node]:
        if self._take("Q"):
            quoted, _, _ = self.text[self.at :].partition("\\E")
            self.at = min(len(self.text), self.at + len(quoted) + 2)
            return [self._folded(Chars(c)) for c in quoted]
        for letter, place in (("A", "^"), ("z", "$"), ("b", "b"), ("B", "B")):
            if self._take(letter):
                return [_place(place)]
        return [self._folded(self._escape()[0])]

    def _folded(self, chars: Chars) -> Node:
        if self.fold:
            chars = Chars(f for c in chars for f in (c, c.lower(), c.upper(), c.upper().lower()))
        return Node("step", Step(chars=chars))

    def _group(self) -> list[Node]:
        kept = self.fold, self.dot
        if self.text.startswith("?", self.at) and not self._match(_GROUP):
            flags = self._match(_FLAGS)
            if flags is None:
                raise PatternError("invalid or unsupported Perl syntax")
            on, off = flags[1], flags[2] or ""
            self.fold = (self.fold or "i" in on) and "i" not in off
            if "s" in on or "s" in off:
                self.dot = _ALL if "s" not in off else _ALL - {"\n"}
            if flags[3] == ")":
                return []
        node = self._choice()
        if not self._take(")"):
            raise PatternError("missing closing )")
        self.fold, self.dot = kept
        return [node]

    def _escape(self) -> tuple[Chars, bool]:
        """What follows a backslash, and whether it is one character."""
        if self.at >= len(self.text):
            raise PatternError("trailing backslash at end of expression")
        if found := self._match(_CATEGORY):
            chars = _category(found[3] or found[4])
            return (chars if (found[1] == "p") != bool(found[2]) else _ALL - chars), False
        if found := self._match(_CODE):
            code = int(found[1] or found[2], 16) if found[3] is None else int(found[3], 8)
            if code > 0x10FFFF:
                raise PatternError("invalid escape sequence")
            return Chars(chr(code)), True
        char = self.text[self.at]
        self.at += 1
        if char.lower() in _PERL:
            chars = _PERL[char.lower()]
            return (chars if char.islower() else _ALL - chars), False
        if char in _NAMED:
            return Chars(_NAMED[char]), True
        if ord(char) < 128 and not char.isalnum():
            return Chars(char), True
        raise PatternError("invalid escape sequence")

    def _class(self) -> Node:
        negated = self._take("^")
        chars = Chars()
        first = True
        while first or not self._take("]"):
            if self.at >= len(self.text):
                raise PatternError("missing closing ]")
            first = False
            chars |= self._class_part()
        node = self._folded(chars)
        if negated:
            node = Node("step", Step(chars=_ALL - (node.step.chars or Chars())))
        return node

    def _class_part(self) -> Chars:
        if found := self._match(_POSIX_NAME):
            if found[2] not in _POSIX:
                raise PatternError("invalid character class range")
            return _ALL - _POSIX[found[2]] if found[1] else _POSIX[found[2]]
        low, single = self._class_char()
        ahead = self.text[self.at : self.at + 2]
        if not single or len(ahead) < 2 or ahead[0] != "-" or ahead[1] == "]":
            return low
        self.at += 1
        high, single = self._class_char()
        if not single or min(high) < min(low):
            raise PatternError("invalid character class range")
        wide = Chars(c for c in _ASCII if min(low) <= c <= min(high))
        return wide | low

    def _class_char(self) -> tuple[Chars, bool]:
        if self._take("\\"):
            return self._escape()
        char = self.text[self.at]
        self.at += 1
        return Chars(char), True


def _category(name: str) -> Chars:
    """The ASCII characters of a Unicode category, or of the script that has any."""
    if name == "Any":
        return _ALL
    if name == "Latin":
        return _POSIX["alpha"]
    if not _CATEGORIES.fullmatch(name):
        raise PatternError("invalid character class range")
    return Chars(c for c in _ASCII if unicodedata.category(c).startswith(name))
