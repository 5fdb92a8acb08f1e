"""Decodes bodies of requests as Go decodes them into a struct, with Go's errors.

A `Shape` has the names and types. Names match in any case, unknown ones are ignored, null keeps the
default; the first value of a wrong type makes the whole body invalid.
"""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from broker.base.gotext import go_quote
from broker.base.patterns import lazy_pattern
from broker.base.units import INT64_MAX, INT64_MIN
from broker.base.values import dataclass
from broker.protocols.nats.system import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

_ZERO: Final[dict[str, Any]] = {
    "string": "",
    "int": 0,
    "uint64": 0,
    "bool": False,
    "[]string": (),
}
# Go types and the basic types that they are based on.
_BASE_TYPES: Final = {
    "server.SortOpt": "string",
    "server.ConnState": "int",
    "time.Duration": "int",
}
_RANGES: Final = {"int": (INT64_MIN, INT64_MAX), "uint64": (0, 2**64 - 1)}
_INTEGER: Final = {"int": r"-?\d{1,20}", "uint64": r"\d{1,20}"}

_LONE_SURROGATE: Final = lazy_pattern("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Shape:
    """A Go struct of options; options of every request are in `filters`."""

    name: str  # of the struct: VarzEventOptions
    group: str = ""  # of its embedded part that has `fields`
    fields: Mapping[str, str] = field(default_factory=dict)  # name -> Go type
    filters: str = "EventFilterOptions"


# Options of every request: the servers that it is for. A later server has added the last one.
FILTERS: Final = {
    "server_name": "string",
    "cluster": "string",
    "host": "string",
    "tags": "[]string",
    "domain": "string",
    "exact_match": "bool",
}


class BadBody(Exception):  # noqa: N818 - a mistake of the requester
    """The body is invalid; the text is Go's error."""


class _Number(str):
    __slots__ = ()


def decode(body: bytes, shape: Shape) -> dict[str, Any]:
    """All options by name; those missing in the body have their defaults."""
    types = {**{name: (t, shape.group) for name, t in shape.fields.items()}}
    types.update({name: (t, shape.filters) for name, t in FILTERS.items()})
    options = {name: _ZERO[_BASE_TYPES.get(t, t)] for name, (t, _) in types.items()}
    if not body:
        return options
    value = _parse(body)
    if value is None:
        return options
    if not isinstance(value, dict):
        _refuse(value, f"value of type server.{shape.name}")
    for key, found in value.items():
        name = key.lower()
        if name in types:
            go_type, group = types[name]
            path = ".".join(part for part in (shape.name, group, name) if part)
            options[name] = _value(found, go_type, f"struct field {path}")
    return options


def _parse(body: bytes) -> Any:
    try:
        return json.loads(
            body.decode("utf-8", "replace"),
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except RecursionError as error:
        raise BadBody(errors.GO_JSON_DEPTH) from error
    except ValueError as error:
        raise BadBody(syntax_error(body)) from error


def text_of(value: str) -> str:
    """A string of a JSON text as Go reads it: lone surrogates are replaced."""
    return _LONE_SURROGATE.sub("\ufffd", value)


def _constant(word: str) -> NoReturn:
    raise ValueError(word)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if value is not None}  # null changes nothing


def _value(found: Any, go_type: str, where: str) -> Any:
    kind = _BASE_TYPES.get(go_type, go_type)
    if kind == "string" and isinstance(found, str) and not isinstance(found, _Number):
        return text_of(found)
    if kind == "bool" and isinstance(found, bool):
        return found
    if kind == "[]string" and isinstance(found, list):
        return tuple(_value("" if each is None else each, "string", where) for each in found)
    if kind in _RANGES and isinstance(found, _Number):
        low, high = _RANGES[kind]
        if re.fullmatch(_INTEGER[kind], found, re.ASCII) and low <= (number := int(found)) <= high:
            return number
        raise BadBody(errors.GO_JSON_TYPE.format(f"number {found}", where, go_type))
    return _refuse(found, where, go_type)


def _refuse(found: Any, where: str, go_type: str = "") -> NoReturn:
    names = {_Number: "number", str: "string", bool: "bool", list: "array", dict: "object"}
    name = names[type(found)]
    text = errors.GO_JSON_TYPE.format(name, where, go_type)
    raise BadBody(text if go_type else text.removesuffix(" of type "))


# --- errors of Go's scanner ---------------------------------------------------------------------

_BLANKS: Final = lazy_pattern(rb"[ \t\r\n]*")
_VALUE: Final = "looking for beginning of value"
_KEY: Final = "looking for beginning of object key string"
_LITERALS: Final = {0x74: b"true", 0x66: b"false", 0x6E: b"null"}
_STRING: Final = lazy_pattern(
    rb'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*'
)  # up to its end, or to its first error
_NUMBER_STEPS: Final = (
    (lazy_pattern(rb"-?"), lazy_pattern(rb"0|[1-9][0-9]*"), "in numeric literal"),
    (lazy_pattern(rb"\."), lazy_pattern(rb"[0-9]+"), "after decimal point in numeric literal"),
    (lazy_pattern(rb"[eE][+-]?"), lazy_pattern(rb"[0-9]+"), "in exponent of numeric literal"),
)


class _Stop(Exception):  # noqa: N818 - it ends the scanner
    pass


def syntax_error(body: bytes) -> str:
    """Go's error for a body that is not JSON."""
    try:
        _Scanner(body).run()
    except _Stop as stop:
        return str(stop)
    return errors.GO_JSON_END


def stream_error(body: bytes) -> str:
    """The error of Go's Decoder, which reads values that follow each other, for a body that has
    something else. It says after how many bytes this is certain."""
    scanner = _Scanner(body)
    try:
        while True:
            scanner.value()
    except _Stop as stop:
        if scanner.at == len(body):
            return errors.GO_JSON_EOF
        return f"{stop} at offset {scanner.at + 1}"


class _Scanner:
    """Scans a text up to its first error, with an explicit stack."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def run(self) -> None:
        """Scan a value and the end of the text after it."""
        self.value()
        self.blanks()
        if self.at < len(self.body):
            self._stop("after top-level value")

    def value(self) -> None:
        """Scan a value."""
        stack: list[int] = []
        self._begin(stack)
        while stack:
            self.blanks()
            closing, char = stack[-1], self._peek()
            if char == closing:
                self.at += 1
                stack.pop()
            elif char == 0x2C:  # a comma
                self.at += 1
                if closing == 0x7D:
                    self._key()
                self._begin(stack)
            else:
                where = "object key:value pair" if closing == 0x7D else "array element"
                self._stop(f"after {where}")

    def _peek(self) -> int:
        if self.at >= len(self.body):
            raise _Stop(errors.GO_JSON_END)
        return self.body[self.at]

    def _inside(self) -> int:
        """The next byte inside a word or number; the end of the text counts as a blank."""
        return self.body[self.at] if self.at < len(self.body) else 0x20

    def _stop(self, where: str) -> NoReturn:
        char = chr(self._inside())
        quoted = {"'": "'\\''", '"': "'\"'"}.get(char)
        if quoted is None:
            quoted = "'" + go_quote(char.encode())[1:-1] + "'"
        raise _Stop(errors.GO_JSON_CHARACTER.format(quoted, where))

    def blanks(self) -> None:
        found = _BLANKS.match(self.body, self.at)
        assert found is not None
        self.at = found.end()

    def _begin(self, stack: list[int]) -> None:
        """Scan a value; of an array or object only the part before its first element."""
        while True:
            self.blanks()
            char = self._peek()
            if char == 0x7B:  # {
                self.at += 1
                self.blanks()
                if self._peek() != 0x7D:
                    self._key()
                    stack.append(0x7D)
                    continue
                self.at += 1
            elif char == 0x5B:  # [
                self.at += 1
                self.blanks()
                if self._peek() != 0x5D:
                    stack.append(0x5D)
                    continue
                self.at += 1
            else:
                self._scalar(char)
            return

    def _key(self) -> None:
        self.blanks()
        if self._peek() != 0x22:
            self._stop(_KEY)
        self._string()
        self.blanks()
        if self._peek() != 0x3A:
            self._stop("after object key")
        self.at += 1

    def _scalar(self, char: int) -> None:
        if char == 0x22:
            self._string()
        elif char in _LITERALS:
            word = _LITERALS[char]
            for expected in word:
                if self._inside() != expected:
                    self._stop(f"in literal {word.decode()} (expecting '{chr(expected)}')")
                self.at += 1
        elif char == 0x2D or 0x30 <= char <= 0x39:
            self._number()
        else:
            self._stop(_VALUE)

    def _number(self) -> None:
        for begin, rest, where in _NUMBER_STEPS:
            found = begin.match(self.body, self.at)
            if found is None:
                continue
            self.at = found.end()
            digits = rest.match(self.body, self.at)
            if digits is None:
                self._stop(where)
            self.at = digits.end()

    def _string(self) -> None:
        found = _STRING.match(self.body, self.at + 1)
        assert found is not None
        self.at = found.end()
        char = self._peek()
        if char == 0x22:
            self.at += 1
            return
        if char != 0x5C:
            self._stop("in string literal")
        self.at += 1
        if self._inside() != 0x75:  # u
            self._stop("in string escape code")
        self.at += 1
        while self._inside() in b"0123456789abcdefABCDEF":
            self.at += 1
        self._stop("in \\u hexadecimal character escape")
