"""The configuration language of nats-server: parses text to nested values with positions.

    key: value      key = value      key value      key { ... }

An entry ends with a new line, a comma or a semicolon. Values are strings (bare, quoted, or a block
in parentheses), numbers with units, booleans, dates, arrays, maps and $variables, which are looked
up in the enclosing maps, then in the environment. `include FILE` inserts another file. Of duplicate
keys the last one wins. Source: nats-server conf/lex.go and parse.go.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.base.patterns import lazy_pattern
from broker.protocols.nats import limits
from broker.protocols.nats.conf.text import BLANKS, NEW_LINE, ConfError, Map, Source, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ConfError", "Map", "Value", "parse_file", "parse_text"]

_SEPARATORS: Final = "=:"
# Characters that may follow a number; any other one makes it the beginning of a string.
_AFTER_NUMBER: Final = NEW_LINE + BLANKS + "},;"
_BARE: Final = lazy_pattern(r"[^\r\n \t;,\]}'\\]*")
_BARE_KEY: Final = lazy_pattern(r"[^\s=:]*")
_INCLUDED: Final = lazy_pattern(r"[^\r\n \t;}']*")
_NUMBER: Final = lazy_pattern(r"(-?[0-9]+)([kKmMgGtTpPeE][bBiI]*)?")
_FLOAT: Final = lazy_pattern(r"-?[0-9]+\.[0-9]+")
_ADDRESS: Final = lazy_pattern(r"-?[0-9]+\.[0-9]+\.[0-9.:\-]*")
_DATE: Final = lazy_pattern(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_BLOCK_END: Final = lazy_pattern(r"(?<=\n)\)(?=\n|\Z)")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_POWERS: Final = {letter: power for power, letter in enumerate("kmgtpe", 1)}
_BOOLS: Final = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}
_INT64: Final = range(-(1 << 63), 1 << 63)
# A bare hash is not a variable.
_BCRYPT: Final = "$2a$"
_DIGITS_MAX: Final = 64


def parse_file(path: Path, environment: Mapping[str, str], including: tuple[Path, ...] = ()) -> Map:
    """Parse a file; ConfError if it is invalid or unreadable. `including`: the including files."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise ConfError(str(path), 0, 0, f"cannot be read: {error.strerror}") from None
    return _Parser(text, str(path), environment, (*including, path.resolve())).whole()


def parse_text(text: str, environment: Mapping[str, str], file: str = "") -> Map:
    """Parse a text; its includes are relative to `file`."""
    return _Parser(text, file, environment, ()).whole()


class _Parser(Source):
    """The parser of one file."""

    def __init__(
        self, text: str, file: str, environment: Mapping[str, str], including: tuple[Path, ...]
    ) -> None:
        super().__init__(text, file)
        self.environment = environment
        self.including = including
        self.maps: list[Map] = [{}]
        self.depth = 0

    # --- entries

    def whole(self) -> Map:
        """Parse the top level; parts of it may be in braces, as in JSON."""
        braces = 0
        while True:
            self.skip_space()
            char = self.peek()
            if char == "{":
                braces += 1
                self.pos += 1
            elif char == "}" and braces:
                braces -= 1
                self.pos += 1
                self.after_brace(braces)
            elif not char:
                if braces:
                    raise self.wrong("ends before '}'")
                return self.maps[0]
            else:
                self.entry()
                # Outside of braces, a stray closing brace ends an entry like a new line.
                self.end_of_entry(",;" if braces else ",;}", "}" if braces else "")

    def after_brace(self, braces: int) -> None:
        self.skip_space()
        if braces and self.peek() and self.peek() in ",;":
            self.pos += 1

    def entry(self) -> None:
        """Parse a key and its value, or an include."""
        start = self.pos
        if self.peek() in _SEPARATORS:
            raise self.wrong(f"key expected, found {self.shown()}")
        if self.peek() in "\"'":
            key = self.quoted_key()
        else:
            match = _BARE_KEY.match(self.text, self.pos)
            assert match is not None
            key, self.pos = match[0], match.end()
            if key.lower() == "include" and self.peek() and self.peek() not in _SEPARATORS:
                self.include()
                return
        self.skip_space(comments=False)
        nested = len(self.maps) > 1
        if self.peek() and self.peek() in _SEPARATORS:
            self.pos += 1
            if nested:
                self.skip_space(comments=False)
            else:
                self.skip_blanks()
        if not self.peek() or self.peek() in NEW_LINE or (nested and self.peek() in ",}"):
            raise self.wrong(f"{key!r} has no value", start)
        it = self.read()
        value = it if isinstance(it, Value) else self.value(it, start)
        value.line, value.column = self.position(start)
        self.maps[-1][key] = value

    def end_of_entry(self, ends: str, close: str) -> None:
        """Skip the end of an entry; `close` is left for the caller."""
        self.skip_blanks()
        if self.at_comment():
            self.skip_comment()
        char = self.peek()
        if not char or char in close:
            return
        if char not in NEW_LINE + ends:
            raise self.wrong(f"new line, ',' or ';' expected after a value, found {self.shown()}")
        self.pos += 1

    def quoted_key(self) -> str:
        quote = self.peek()
        end = self.text.find(quote, self.pos + 1)
        if end < 0:
            raise self.wrong(f"key lacks its closing {quote}")
        key, self.pos = self.text[self.pos + 1 : end], end + 1
        return key

    def include(self) -> None:
        self.skip_blanks()
        start, char = self.pos, self.peek()
        if char and char in "\"'":
            name = self.quoted_key()
        elif not char or char in NEW_LINE + "[{(-\\" or char.isdigit():
            raise self.wrong(f"file name expected after include, found {self.shown()}")
        else:
            match = _INCLUDED.match(self.text, self.pos)
            assert match is not None
            name, self.pos = match[0], match.end()
        if "\0" in name:
            raise self.wrong("no file has such a name", start)
        path = Path(self.file).parent / name
        if "\0" in name:
            raise self.wrong("no file has such a name", start)
        if path.resolve() in self.including:
            raise self.wrong(f"{name} includes itself", start)
        if len(self.including) >= limits.CONF_DEPTH_MAX:
            raise self.wrong("too many files inside each other", start)
        try:
            self.maps[-1].update(parse_file(path, self.environment, self.including))
        except ConfError as error:
            if error.line:
                raise
            raise self.wrong(f"{name} {error.reason}", start) from None

    # --- values

    def read(self) -> Any:
        """Parse one value: plain, or a Value if a variable refers to it."""
        char = self.peek()
        read: Callable[[], Any] | None = {
            "[": self.array,
            "{": self.map,
            "'": self.raw_string,
            '"': self.string,
            "(": self.block,
        }.get(char)
        if read is not None:
            return read()
        if char == "." or (char == "-" and not self.text[self.pos + 1 : self.pos + 2].isdigit()):
            raise self.wrong("a number begins with a digit")
        if char == "-" or char in "0123456789":
            return self.number()
        return self.bare()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > limits.CONF_DEPTH_MAX:
            raise self.wrong("too many values inside each other")

    def array(self) -> list[Value]:
        start, found = self.pos, list[Value]()
        self.deeper()
        self.pos += 1
        while True:
            self.skip_space()
            if not self.peek():
                raise self.wrong("array lacks its closing ]", start)
            if self.peek() == "]":
                self.pos += 1
                self.depth -= 1
                return found
            if self.peek() in ",}":
                raise self.wrong(f"value or ']' expected, found {self.shown()}")
            at = self.pos
            it = self.read()
            found.append(it if isinstance(it, Value) else self.value(it, at))
            self.end_of_item()

    def end_of_item(self) -> None:
        self.skip_blanks()
        if self.at_comment():
            self.skip_comment()
        if self.peek() and self.peek() in "," + NEW_LINE:
            self.pos += 1
        elif self.peek() and self.peek() != "]":
            raise self.wrong(f"',' or ']' expected in an array, found {self.shown()}")

    def map(self) -> Map:
        start, found = self.pos, Map()
        self.deeper()
        self.maps.append(found)
        self.pos += 1
        while True:
            self.skip_space()
            if not self.peek():
                raise self.wrong("map lacks its closing }", start)
            if self.peek() == "}":
                self.pos += 1
                self.depth -= 1
                return self.maps.pop()
            if self.peek() == "]":
                raise self.wrong("key or '}' expected, found ']'")
            self.entry()
            self.end_of_entry(",;", "}")

    def raw_string(self) -> str:
        end = self.text.find("'", self.pos + 1)
        if end < 0:
            raise self.wrong("string lacks its closing '")
        text, self.pos = self.text[self.pos + 1 : end], end + 1
        return text

    def string(self) -> str:
        start, parts = self.pos, list[str]()
        self.pos += 1
        while True:
            end = self.pos
            while end < len(self.text) and self.text[end] not in '"\\':
                end += 1
            parts.append(self.text[self.pos : end])
            self.pos = end
            if end == len(self.text):
                raise self.wrong('string lacks its closing "', start)
            if self.text[end] == '"':
                self.pos += 1
                return _text("".join(parts))
            parts.append(self.escape())

    def escape(self) -> str:
        char = self.text[self.pos + 1 : self.pos + 2]
        if char in _ESCAPES and char:
            self.pos += 2
            return _ESCAPES[char]
        digits = self.text[self.pos + 2 : self.pos + 4]
        if char != "x" or not re.fullmatch("[0-9a-fA-F]{2}", digits):
            raise self.wrong(r"after \ only xHH, t, n, r, \" and \\ are allowed")
        self.pos += 4
        byte = bytes.fromhex(digits)
        return byte.decode("ascii", "surrogateescape")

    def block(self) -> str:
        match = _BLOCK_END.search(self.text, self.pos)
        if match is None:
            raise self.wrong("block lacks its closing ) on a line of its own")
        text, self.pos = self.text[self.pos + 1 : match.start()], match.end()
        return text

    def number(self) -> Any:
        for pattern, make in ((_DATE, _date), (_ADDRESS, str), (_FLOAT, _float)):
            match = pattern.match(self.text, self.pos)
            if match is not None:
                self.pos, start = match.end(), self.pos
                try:
                    return make(match[0])
                except ValueError as error:
                    raise self.wrong(str(error), start) from None
        match = _NUMBER.match(self.text, self.pos)
        assert match is not None
        after = self.text[match.end() : match.end() + 1]
        if match[1][0] == "-" or not after or after in _AFTER_NUMBER:
            self.pos, start = match.end(), self.pos
            return self.whole_number(match[1], (match[2] or "").lower(), start)
        if after == "." or (after == "-" and not match[2]):
            raise self.wrong("is not a number, an address or a date")
        # After plain digits, the character that made it a string is always a part of it.
        return self.bare(match.end() + (0 if match[2] else 1))

    def whole_number(self, digits: str, unit: str, start: int) -> int:
        base = 1024 if unit[1:] in ("b", "i", "ib") else 1000
        if unit[1:] not in ("", "b", "i", "ib"):
            raise self.wrong(f"{unit} is not a unit", start)
        # More digits are out of range anyway, and int() may refuse them.
        short = digits if len(digits) < _DIGITS_MAX else digits[:_DIGITS_MAX]
        number = int(short) * base ** _POWERS[unit[0]] if unit else int(short)
        if number not in _INT64 or short != digits:
            raise self.wrong(f"{short}{unit} is out of range", start)
        return number

    def bare(self, end: int | None = None) -> Any:
        start, parts = self.pos, list[str]()
        if end is not None:
            parts.append(self.text[self.pos : end])
            self.pos = end
        escaped = False
        while True:
            match = _BARE.match(self.text, self.pos)
            assert match is not None
            parts.append(match[0])
            self.pos = match.end()
            if self.peek() != "\\":
                break
            parts.append(self.escape())
            escaped = True
        text = "".join(parts)
        if self.peek() == "'":
            self.pos += 1
        elif not escaped and text.lower() in _BOOLS:
            return _BOOLS[text.lower()]
        elif not escaped and text.startswith("$") and not text.startswith(_BCRYPT):
            return self.variable(text[1:], start)
        return _text(text)

    def variable(self, name: str, pos: int) -> Value:
        for enclosing in reversed(self.maps):
            if name in enclosing:
                enclosing[name].used = True
                return self.value(enclosing[name].it, pos)
        if name not in self.environment:
            raise self.wrong(f"variable {name} is neither set above nor in the environment", pos)
        try:
            found = parse_text(f"pk={self.environment[name]}", self.environment, self.file)["pk"]
        except ConfError as error:
            raise self.wrong(f"variable {name} of the environment: {error.reason}", pos) from None
        return self.value(found.it, pos)


def _text(text: str) -> str:
    """Convert bytes written as escapes to characters, if they are UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is out of range")
    return number


def _date(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
