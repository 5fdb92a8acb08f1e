"""The text of a configuration file: positions in it, and values with positions."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from broker.base.values import dataclass

BLANKS: Final = " \t"
NEW_LINE: Final = "\r\n"

Map = dict[str, "Value"]


class ConfError(Exception):
    """A mistake in a configuration file."""

    def __init__(self, file: str, line: int, column: int, reason: str) -> None:
        super().__init__(f"{file}:{line}:{column}: {reason}")
        self.file, self.line, self.column, self.reason = file, line, column, reason


class ConfNote(ConfError):  # noqa: N818 - a note is not an error
    """A note about an ignored value; unlike other warnings, it does not fail a check."""


class ConfErrors(Exception):  # noqa: N818 - a list of errors
    """All mistakes of a configuration, one line each."""

    def __init__(self, errors: list[ConfError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors


@dataclass(slots=True)
class Value:
    """One value with the position of its key (in an array: of the value).

    `it` is str, int, float, bool, datetime, list[Value] or Map.
    """

    it: Any
    file: str
    line: int
    column: int
    used: bool = field(default=False, compare=False)  # a $variable refers to it

    def error(self, reason: str) -> ConfError:
        """A mistake at this position."""
        return ConfError(self.file, self.line, self.column, reason)

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.it, dict):
            return {key: value.plain() for key, value in self.it.items()}
        return [value.plain() for value in self.it] if isinstance(self.it, list) else self.it


class Source:
    """The text of one file and the current position, which only moves forward."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.pos = 0

    # --- positions

    def position(self, pos: int) -> tuple[int, int]:
        start = self.text.rfind("\n", 0, pos) + 1
        return self.text.count("\n", 0, pos) + 1, pos - start + 1

    def wrong(self, reason: str, pos: int | None = None) -> ConfError:
        return ConfError(self.file, *self.position(self.pos if pos is None else pos), reason)

    def value(self, it: Any, pos: int) -> Value:
        return Value(it, self.file, *self.position(pos))

    # --- characters

    def peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def shown(self) -> str:
        return repr(self.peek()) if self.peek() else "the end of the file"

    def skip_blanks(self) -> None:
        while self.peek() and self.peek() in BLANKS:
            self.pos += 1

    def skip_space(self, comments: bool = True) -> None:
        """Skip blanks, new lines, and comments."""
        while self.peek():
            if self.peek().isspace():
                self.pos += 1
            elif comments and self.at_comment():
                self.skip_comment()
            else:
                return

    def at_comment(self) -> bool:
        return self.peek() == "#" or self.text.startswith("//", self.pos)

    def skip_comment(self) -> None:
        while self.peek() and self.peek() not in NEW_LINE:
            self.pos += 1
