"""Command lines by the rules of Go's `flag` package, which scripts for nsqd rely on.

`-x` and `--x` are the same. A value follows after `=` or is the next argument; that of a boolean
flag follows only after `=`. The first argument that is not a flag, or `--`, ends the flags. The
kind of a flag parses its value from the command line and from a configuration file.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any

from broker.base.gotext import UNITS, duration_text, go_quote, time_quote
from broker.base.patterns import lazy_pattern
from broker.base.units import INT64_MAX, INT64_MIN, MS
from broker.base.values import dataclass
from broker.cli.dropin import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class FlagError(Exception):
    """An invalid command line."""


class HelpWanted(Exception):  # noqa: N818 (not an error: a request)
    """-h or -help was given."""


_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_FALSE = ("0", "f", "F", "FALSE", "false", "False")
_INT = lazy_pattern(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO]?(?:_?[0-7])+|0|[1-9](?:_?[0-9])*)"
)
_DURATION_PART = lazy_pattern(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")


def parse_bool(value: str) -> bool:
    """Parse one of Go's words for a boolean. ValueError."""
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ValueError(errors.GO_PARSE_ERROR)


def parse_int(value: str) -> int:
    """A 64-bit number in any of Go's bases."""
    if not _INT.fullmatch(value):
        raise ValueError(errors.GO_PARSE_ERROR)
    digits = value.lstrip("+-").replace("_", "").lower()
    if digits[:1] == "0" and digits[1:].isdigit():
        digits = "0o" + digits[1:]
    number = int(digits, 0) * (-1 if value[0] == "-" else 1)
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(errors.GO_OUT_OF_RANGE)
    return number


def parse_duration(value: str) -> int:
    """Nanoseconds of "1m30s", "-1.5h", "0"."""
    rest = value[1:] if value[:1] in ("+", "-") else value
    total, pos = 0, 0
    while rest != "0" and (match := _DURATION_PART.match(rest, pos)):
        whole, fraction = match[1], match[2] or ""
        if not whole and not fraction:
            break
        unit = UNITS[match[3]]
        total += int(whole or 0) * unit
        if fraction:
            total += int(fraction) * unit // 10 ** len(fraction)
        pos = match.end()
    if not rest or (rest != "0" and pos != len(rest)) or total > INT64_MAX:
        raise ValueError(errors.GO_PARSE_ERROR)
    return -total if value[0] == "-" else total


class Kind:
    """A string, and the base of the other kinds."""

    shown = "string"  # follows the name in the usage text
    boolean = False  # its value needs =
    many = False  # may be repeated

    def parse(self, value: str) -> Any:
        """Parse a value of the command line. ValueError with Go's text."""
        return value

    def coerce(self, value: object) -> Any:
        """Parse a value of a configuration file. ValueError with the reason."""
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"invalid value type {type(value).__name__}")
        return self.parse(str(value))

    def default_text(self, default: Any) -> str:
        """The default in the usage text; empty if it is the zero value."""
        return go_quote(default) if default else ""


class BoolKind(Kind):
    """true or false."""

    shown, boolean = "", True

    def parse(self, value: str) -> bool:
        return parse_bool(value)

    def coerce(self, value: object) -> bool:
        """A number means the opposite of what users expect, as in the original."""
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value == 0
        if isinstance(value, str):
            return parse_bool(value)
        raise ValueError(f"invalid value type {type(value).__name__}")

    def default_text(self, default: Any) -> str:
        return "true" if default else ""


class IntKind(Kind):
    """A whole number."""

    shown = "int"

    def parse(self, value: str) -> int:
        return parse_int(value)

    def coerce(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ValueError(f"invalid value type {type(value).__name__}")
        if isinstance(value, int):
            return value
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value):
            raise ValueError(f"strconv.ParseInt: parsing {go_quote(value)}: invalid syntax")
        return int(value)

    def default_text(self, default: Any) -> str:
        return str(default) if default else ""


class DurationKind(Kind):
    """Nanoseconds; a bare number in a configuration file is milliseconds."""

    shown = "duration"

    def parse(self, value: str) -> int:
        return parse_duration(value)

    def coerce(self, value: object) -> int:
        if isinstance(value, str):
            try:
                return parse_duration(value)
            except ValueError:
                raise ValueError(f"time: invalid duration {time_quote(value)}") from None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"invalid value type {type(value).__name__}")
        return value * MS

    def default_text(self, default: Any) -> str:
        return duration_text(default) if default else ""


class WordKind(Kind):
    """One of a few words, in any case, each with its value."""

    shown = "value"

    def __init__(
        self, words: Mapping[str, Any], refusal: str, *, boolean: bool = False, empty: bool = False
    ) -> None:
        """`refusal`: the error text with {word}; `empty`: "" is accepted and changes nothing."""
        self.words, self.refusal, self.boolean, self.empty = words, refusal, boolean, empty
        if boolean:
            self.shown = ""

    def parse(self, value: str) -> Any:
        word = value.lower()
        if word == "" and self.empty:
            return None
        if word not in self.words:
            raise ValueError(self.refusal.format(word=value, quoted=go_quote(value)))
        return self.words[word]

    def coerce(self, value: object) -> Any:
        return self.parse(str(value).lower())

    def default_text(self, default: Any) -> str:
        return str(default)


class ListKind(Kind):
    """A list of strings, one for each time the flag is given."""

    shown, many = "value", True

    def parse(self, value: str) -> list[Any]:
        return [value]

    def coerce(self, value: object) -> list[Any]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list):
            raise ValueError(f"invalid value type {type(value).__name__}")
        return [self.item(item) for item in items]

    def item(self, value: object) -> Any:
        """One element of a list in a configuration file."""
        if not isinstance(value, str):
            raise ValueError(f"invalid value type {type(value).__name__}")
        return value

    def default_text(self, default: Any) -> str:  # noqa: ARG002
        return ""


class FloatListKind(ListKind):
    """A list of numbers; one value may have several, separated by commas."""

    def parse(self, value: str) -> list[float]:
        return [self.item(part) for part in value.split(",")]

    def item(self, value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        try:
            return float(str(value).strip() if isinstance(value, str) else "")
        except ValueError:
            reason = f"strconv.ParseFloat: parsing {go_quote(str(value))}: invalid syntax"
            raise ValueError(reason) from None


STRING, BOOL, INT, DURATION = Kind(), BoolKind(), IntKind(), DurationKind()
LIST, FLOATS = ListKind(), FloatListKind()


@dataclass(frozen=True)
class Flag:
    """One flag of a program."""

    name: str
    kind: Kind
    default: Any
    usage: str
    target: str = (
        ""  # "section.key" of the TOML configuration; empty: handled by name, or no effect
    )
    key: str = ""  # key in the configuration file, if it is not the name with _ for -
    in_file: bool = True  # may be in the configuration file

    @property
    def file_key(self) -> str:
        """The key in the configuration file."""
        return self.key or self.name.replace("-", "_")


@dataclass()
class Parsed:
    """A parsed command line."""

    given: dict[str, Any] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)


def parse(flags: Mapping[str, Flag], args: Sequence[str]) -> Parsed:
    """Read a command line. FlagError; HelpWanted."""
    found = Parsed()
    pending = list(args)
    while pending:
        arg = pending[0]
        if len(arg) < 2 or arg[0] != "-":
            break
        pending.pop(0)
        if arg == "--":
            break
        name = arg[2:] if arg[1] == "-" else arg[1:]
        if not name or name[0] in "-=":
            raise FlagError(errors.GO_BAD_SYNTAX.format(arg))
        name, equals, value = name.partition("=")
        flag = flags.get(name)
        if flag is None:
            if name in ("help", "h"):
                raise HelpWanted
            raise FlagError(errors.GO_NOT_DEFINED.format(name))
        if not equals and not flag.kind.boolean:
            if not pending:
                raise FlagError(errors.GO_NEEDS_ARGUMENT.format(name))
            value = pending.pop(0)
        _take(found, flag, value if equals or not flag.kind.boolean else "true")
    found.rest = pending
    return found


def _take(found: Parsed, flag: Flag, value: str) -> None:
    try:
        read = flag.kind.parse(value)
    except ValueError as error:
        text = errors.GO_INVALID_BOOLEAN if flag.kind.boolean else errors.GO_INVALID_VALUE
        raise FlagError(text.format(go_quote(value), flag.name, error)) from None
    if flag.kind.many:
        found.given.setdefault(flag.name, []).extend(read)
    elif read is not None:
        found.given.pop(flag.name, None)
        found.given[flag.name] = read  # ordered by the last occurrence


def usage(program: str, flags: Mapping[str, Flag]) -> str:
    """The usage text of -h."""
    lines = [f"Usage of {program}:"]
    for _, flag in sorted(flags.items()):
        shown = f" {flag.kind.shown}" if flag.kind.shown else ""
        default = flag.kind.default_text(flag.default)
        lines.append(f"  -{flag.name}{shown}")
        lines.append(f"    \t{flag.usage}" + (f" (default {default})" if default else ""))
    return "\n".join(lines) + "\n"


def resolve(
    flags: Mapping[str, Flag], given: Mapping[str, Any], file: Mapping[str, object]
) -> dict[str, Any]:
    """The value of each flag: from the command line, else the file, else its default. FlagError."""
    values: dict[str, Any] = {}
    for name, flag in flags.items():
        values[name] = flag.default
        if name in given:
            values[name] = given[name]
        elif flag.in_file and flag.file_key in file:
            raw = file[flag.file_key]
            try:
                read = flag.kind.coerce(raw)
            except ValueError as error:
                raise FlagError(errors.GO_COERCE.format(raw, name, error)) from None
            values[name] = flag.default if read is None else read
    return values
