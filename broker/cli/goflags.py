"""Command lines as Go's flag package reads them, and files as nsqd's reads them.

`-x v`, `-x=v` and the same with two dashes; booleans take a value only behind `=`; the first word
that is no flag ends them. A flag wins over the file, the file over the default.
Sources: Go flag/flag.go; mreiferson/go-options.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from broker import limits

_UNITS: Final = {
    "ns": 1,
    "us": limits.US,
    "\u00b5s": limits.US,
    "\u03bcs": limits.US,
    "ms": limits.MS,
    "s": limits.SECOND,
    "m": limits.MINUTE,
    "h": limits.HOUR,
}
_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
EXIT_USAGE: Final = 2


class FlagError(Exception):
    """The command line or the file is wrong; the text is Go's where Go has one."""


def parse_duration(text: str) -> int:
    """Nanoseconds of "1m30s"; ValueError."""
    rest = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if rest == "0":
        return 0
    total, at = 0, 0
    while match := _PART.match(rest, at):
        whole, _, part = match[1].partition(".")
        unit = _UNITS[match[2]]
        total += int(whole or 0) * unit + (int(part) * unit // 10 ** len(part) if part else 0)
        at = match.end()
    if at == 0 or at != len(rest):
        raise ValueError(f'time: invalid duration "{text}"')
    return -total if text.startswith("-") else total


def parse_int(text: str) -> int:
    """Go's strconv.ParseInt with base 0; ValueError."""
    if re.fullmatch(r"[+-]?0[0-7]+", text):
        return int(text, 8)
    if text.strip() != text or text.startswith("_"):
        raise ValueError(text)
    return int(text, 0)


def parse_bool(text: str) -> bool:
    """Go's strconv.ParseBool; ValueError."""
    try:
        return _BOOLS[text]
    except KeyError:
        raise ValueError(text) from None


def _choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text.lower()

    return parse


def _required(text: str) -> str:
    if text.lower() == "tcp-https":
        return "tcp-https"
    return "true" if parse_bool(text.lower()) else "false"


def _version(text: str) -> str:
    return _choice("tls1.0", "tls1.1", "tls1.2", "tls1.3")(text) if text else ""


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "int": parse_int,
    "bool": parse_bool,
    "duration": parse_duration,
    "list": str,
    "level": _choice("debug", "info", "warn", "error", "fatal"),
    "required": _required,
    "version": _version,
}
_IS_SWITCH: Final = frozenset({"bool", "required"})


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its kind, its default, what it says of itself, its key in a file."""

    name: str
    kind: str
    default: Any
    help: str
    key: str = ""  # in the file; empty: the name with _ for -

    @property
    def file_key(self) -> str:
        """Where the file has it."""
        return self.key or self.name.replace("-", "_")


class FlagSet:
    """The flags of one program."""

    def __init__(self, program: str, flags: Sequence[Flag]) -> None:
        self.program = program
        self.flags = {flag.name: flag for flag in flags}

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """What was given on the command line, by name; FlagError."""
        found: dict[str, Any] = {}
        rest = list(arguments)
        while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
            word = rest.pop(0)
            if word == "--":
                break
            name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
            if not name or name.startswith("-"):
                raise FlagError(f"bad flag syntax: {word}")
            flag = self.flags.get(name)
            if flag is None:
                if name in {"h", "help"}:
                    raise HelpAsked
                raise FlagError(f"flag provided but not defined: -{name}")
            if not equals and flag.kind in _IS_SWITCH:
                text = "true"
            elif not equals:
                if not rest:
                    raise FlagError(f"flag needs an argument: -{name}")
                text = rest.pop(0)
            self._set(found, flag, text)
        return found

    @staticmethod
    def _set(found: dict[str, Any], flag: Flag, text: str) -> None:
        try:
            value = _PARSERS[flag.kind](text)
        except ValueError as problem:
            if flag.kind in {"int", "duration"}:
                reason = f'invalid value "{text}" for flag -{flag.name}: parse error'
            elif flag.kind == "bool":
                reason = f'invalid boolean value "{text}" for -{flag.name}: parse error'
            else:
                reason = f'invalid value "{text}" for flag -{flag.name}: {problem}'
            raise FlagError(reason) from None
        if flag.kind == "list":
            found.setdefault(flag.name, []).extend(value.split(",") if "," in value else [value])
        else:
            found[flag.name] = value

    def resolve(self, given: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every flag; FlagError when the file has something of another type."""
        return {
            name: given[name]
            if name in given
            else _coerce(flag, file[flag.file_key])
            if flag.file_key in file
            else flag.default
            for name, flag in self.flags.items()
        }

    def usage(self) -> str:
        """What -help prints."""
        lines = [f"Usage of {self.program}:"]
        for name, flag in sorted(self.flags.items()):
            kind = {"bool": "", "required": "", "list": " value", "level": " value"}.get(
                flag.kind, f" {flag.kind}"
            )
            lines += [f"  -{name}{kind}", f"    \t{flag.help}{self._default(flag)}"]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _default(flag: Flag) -> str:
        if not flag.default:
            return ""
        if flag.kind == "duration":
            return f" (default {duration_text(flag.default)})"
        if flag.kind == "string":
            return f' (default "{flag.default}")'
        text = str(flag.default).lower() if flag.kind == "bool" else flag.default
        return f" (default {text})"

    def parse_or_exit(self, arguments: Sequence[str]) -> dict[str, Any]:
        """As parse; mistakes and -help end the process as Go's programs do."""
        try:
            return self.parse(arguments)
        except HelpAsked:
            sys.stderr.write(self.usage())
            sys.exit(0)
        except FlagError as problem:
            self.fail(f"{problem}\n{self.usage()}")

    @staticmethod
    def fail(text: str) -> NoReturn:
        """Say it, and end as after a wrong command line."""
        sys.stderr.write(text)
        sys.exit(EXIT_USAGE)


class HelpAsked(Exception):  # noqa: N818 - it is a wish
    """-h or -help."""


def duration_text(duration_ns: int) -> str:
    """As Go writes durations: 1m0s."""
    if duration_ns < limits.SECOND:
        return f"{duration_ns / limits.MS:g}ms"
    seconds, ns = divmod(duration_ns, limits.SECOND)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    last = f"{seconds + ns / limits.SECOND:g}s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or hours else "") + last


def _coerce(flag: Flag, value: object) -> Any:
    """A value of a TOML file as go-options takes it."""
    if flag.kind == "list":
        entries = value if isinstance(value, list) else str(value).split(",")
        return [str(entry) for entry in entries]
    if flag.kind == "bool" and type(value) is int:
        return value == 0  # a slip of go-options that configurations live with
    if flag.kind == "duration" and (
        type(value) is int or (isinstance(value, str) and value.isdigit())
    ):
        return int(value) * limits.MS
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        return _PARSERS[flag.kind](text)
    except ValueError as problem:
        raise FlagError(f"{flag.file_key}: {problem or 'parse error'} ({value!r})") from None
