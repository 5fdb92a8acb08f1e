"""Reading of single settings: kinds of values, and the lines of keys in a TOML file.

A kind converts one TOML value to the value that the broker uses, or raises ValueError with a reason
that fits after "file:line: key: ". Text from the environment and from flags is first converted to
the TOML value that it looks like, so all sources share one set of rules.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from dataclasses import field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from broker.base.patterns import lazy_pattern
from broker.base.units import (
    COUNT_MAX,
    DAY,
    DURATION_MAX,
    GIB,
    HOUR,
    KIB,
    MESSAGE_SIZE_CEILING,
    MIB,
    MINUTE,
    MS,
    PORT_MAX,
    SECOND,
    US,
)
from broker.base.values import NamedTuple, dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


class Address(NamedTuple):
    """The address of a listener; with port 0 the system picks one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of value and how it is read."""

    read: Callable[[object], T]  # from a TOML value; ValueError with the reason
    from_text: Callable[[str], object]  # to a TOML value, from the environment or a flag


_TYPE_NAMES = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number with a fraction",
    str: "a string",
    list: "an array",
    dict: "a table",
    datetime.datetime: "a date",
    datetime.date: "a date",
    datetime.time: "a time of day",
}


def type_name(value: object) -> str:
    """The name of a TOML type in error texts."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def _expected(what: str, value: object) -> ValueError:
    return ValueError(f"expected {what}, got {type_name(value)} ({value!r})")


def _plain(text_value: str) -> object:
    return text_value


def _maybe_number(text_value: str) -> object:
    return int(text_value) if re.fullmatch(r"[+-]?[0-9]{1,19}", text_value) else text_value


def _maybe_boolean(text_value: str) -> object:
    return {"true": True, "false": False}.get(text_value.lower(), text_value)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise _expected("a string", value)
    return value


def text(check: Callable[[str], None] | None = None) -> Kind[str]:
    """A string that `check` accepts."""

    def read(value: object) -> str:
        found = _string(value)
        if "\0" in found:
            raise ValueError("must not contain a zero byte")
        if check is not None:
            check(found)
        return found

    return Kind(read, _plain)


def not_empty(value: str) -> None:
    """Check that a text is not blank. ValueError."""
    if not value.strip():
        raise ValueError("must not be empty")


def choice(*names: str) -> Kind[str]:
    """One of a few words."""

    def read(value: object) -> str:
        found = _string(value)
        if found not in names:
            shown = ", ".join(name or '""' for name in names)
            raise ValueError(f"must be one of {shown}, got {found!r}")
        return found

    return Kind(read, _plain)


def texts(check: Callable[[str], None]) -> Kind[tuple[str, ...]]:
    """A list of strings that `check` accepts; in the environment separated by commas."""

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise _expected("an array of strings", value)
        for entry in value:
            check(_string(entry))
        return tuple(value)

    return Kind(read, lambda value: [part.strip() for part in value.strip("[]").split(",") if part])


def flag() -> Kind[bool]:
    """true or false."""

    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise _expected("true or false", value)
        return value

    return Kind(read, _maybe_boolean)


def flag_or_auto() -> Kind[bool | None]:
    """true, false or "auto"."""

    def read(value: object) -> bool | None:
        if value == "auto":
            return None
        if not isinstance(value, bool):
            raise _expected('true, false or "auto"', value)
        return value

    return Kind(read, _maybe_boolean)


def number(low: int, high: int) -> Kind[int]:
    """A whole number in a range."""

    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _expected("a whole number", value)
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}, got {value}")
        return value

    return Kind(read, _maybe_number)


_SIZE_UNITS = {
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "tb": 1_000_000_000_000,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
}


def size_text(size: int) -> str:
    """The shortest exact way to write a size: 1048576 -> 1MiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def size(low: int, high: int) -> Kind[int]:
    """Bytes: a whole number, or a string with a unit ("64MiB", "1MB")."""

    def read(value: object) -> int:
        if isinstance(value, str):
            match = re.fullmatch(r"([0-9]{1,15}) ?([A-Za-z]+)", value)
            if not match or match[2].lower() not in _SIZE_UNITS:
                raise ValueError(f'invalid size {value!r}: expected bytes, "64KiB", "1MB" ...')
            value = int(match[1]) * _SIZE_UNITS[match[2].lower()]
        if not isinstance(value, int) or isinstance(value, bool):
            raise _expected("a size", value)
        if value < low and high >= COUNT_MAX:  # a limit that is too large to be a hint
            raise ValueError(f"must be at least {size_text(low)}, got {size_text(value)}")
        if not low <= value <= high:
            raise ValueError(
                f"must be between {size_text(low)} and {size_text(high)}, got {size_text(value)}"
            )
        return value

    return Kind(read, _maybe_number)


_DURATION_UNITS = {
    "us": US,
    "ms": MS,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
    "d": DAY,
}
_DURATION_PART = lazy_pattern(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?(us|ms|s|m|h|d)")


def duration_text(duration_ns: int) -> str:
    """A duration in its usual form: 90 s -> 1m30s."""
    rest, parts = duration_ns, []
    for name in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _DURATION_UNITS[name])
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts) or "0s"


def parse_duration(value: str) -> int:
    """Nanoseconds of "250ms", "1.5s", "1m30s"; also of "-1s", which is out of every range."""
    negative = value.startswith("-")
    total, pos = 0, int(negative)
    while match := _DURATION_PART.match(value, pos):
        unit = _DURATION_UNITS[match[3]]
        total += int(match[1]) * unit
        if match[2]:
            total += int(match[2]) * unit // 10 ** len(match[2])
        pos = match.end()
    if pos == negative or pos != len(value):
        raise ValueError(f'invalid duration {value!r}: expected "250ms", "10s", "1m30s", "2h" ...')
    return -total if negative else total


def duration(low: int, high: int, *, off: bool = False) -> Kind[int]:
    """A string with units, in nanoseconds; with `off` also "off" or 0, both of which mean 0."""

    def read(value: object) -> int:
        if off and (value == "off" or (value == 0 and type(value) is int)):
            return 0
        if not isinstance(value, str):
            raise _expected('a string with a unit ("10s")', value)
        found = parse_duration(value)
        if not low <= found <= high:
            raise ValueError(
                f"must be between {duration_text(low)} and {duration_text(high)}"
                f"{' or off' if off else ''}, got {value}"
            )
        return found

    return Kind(read, _maybe_number if off else _plain)


def parse_address(value: str) -> Address:
    """HOST:PORT, [IPV6]:PORT, or :PORT for every interface."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\s:\[\]]*)):([0-9]{1,5})", value)
    if not match:
        raise ValueError(f'invalid address {value!r}: expected "127.0.0.1:4222" or "[::1]:4222"')
    port = int(match[3])
    if port > PORT_MAX:
        raise ValueError(f"port must be between 0 and {PORT_MAX}, got {port}")
    return Address(match[1] or match[2] or "0.0.0.0", port)  # noqa: S104 (what ":4222" asks for)


def address() -> Kind[Address | None]:
    """The address of a listener; "off" and the empty string disable it and become None."""

    def read(value: object) -> Address | None:
        found = _string(value)
        return parse_address(found) if found not in ("", "off") else None

    return Kind(read, _plain)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener with this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def has_address(url: str) -> bool:
    """Whether a URL has a host, and no port or a valid one."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def check_http(address: str) -> None:
    """Check that a text is HOST:PORT or an HTTP URL. ValueError."""
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s#]*", address) or not has_address(address):
        try:
            bare = parse_address(address)
        except ValueError:
            bare = Address("", 0)
        if not address[0:1].strip(":") or not bare.port:
            raise ValueError(f'invalid server {address!r}: expected "127.0.0.1:4181" or a URL')


# --- keys of a section: fields of a dataclass ------------------------------------------------

LOOPBACK = "127.0.0.1"


def setting(kind: Kind[Any], default: T, *, shown: bool = True, flag: str = "") -> T:
    """A key of a section; its value is shown only if `shown`. `flag`: the flag of `twinwire serve`
    that sets it."""
    return field(default=default, repr=shown, metadata={"kind": kind, "flag": flag})


def file_setting() -> str:
    """A key with the name of a file, which must exist when the server starts; empty: none."""
    return field(default="", metadata={"kind": text(), "flag": "", "file": True})


def duration_setting(default: int, low: int = MS, *, off: bool = False) -> int:
    """A key that is a duration, in nanoseconds."""
    return setting(duration(low, DURATION_MAX, off=off), default)


def size_setting(default: int, low: int, high: int) -> int:
    """A key that is a size, in bytes."""
    return setting(size(low, high), default)


def count_setting(default: int, low: int, high: int = COUNT_MAX) -> int:
    """A key that is a whole number."""
    return setting(number(low, high), default)


def message_size_setting(default: int) -> int:
    """A key that is the size of a message, in bytes."""
    return size_setting(default, 1, MESSAGE_SIZE_CEILING)


def listen_setting(port: int | None, *, flag: str = "", clients: bool = False) -> Address | None:
    """A key with the address of a listener, by default this port of the loopback interface; None =
    disabled. `clients`: it is a client listener, of which a server needs at least one."""
    default = None if port is None else Address(LOOPBACK, port)
    marks = {"kind": address(), "flag": flag, "listens": True, "clients": clients}
    return field(default=default, metadata=marks)


def tables_setting(entry: type[T]) -> tuple[T, ...]:
    """A key that is a list of tables ([[storage.topic]]), each of them one `entry`."""
    return field(default=(), metadata={"entry": entry})


def settings(section: type) -> dict[str, tuple[str, Kind[Any]]]:
    """Key -> attribute and kind, in the order of the section's class. A field that is neither here
    nor in `tables` is not a key: another source of the same settings sets it."""
    return {
        f.name.removesuffix("_ns"): (f.name, f.metadata["kind"])
        for f in fields(section)
        if "kind" in f.metadata
    }


def tables(section: type) -> dict[str, type]:
    """Key -> class of the entries, for the keys that are lists of tables."""
    return {f.name: f.metadata["entry"] for f in fields(section) if "entry" in f.metadata}


class Conflict(NamedTuple):
    """Two keys whose values exclude each other. A section reports its own by a method
    `conflicts(config)`, which receives the whole configuration."""

    keys: tuple[tuple[str, str], tuple[str, str]]  # (section, key)
    reason: str


def conflict(key: str, other: str, reason: str) -> Conflict:
    """A conflict of two keys, given as section.key; it is reported at the line of the first one."""
    return Conflict((_named(key), _named(other)), reason)


def _named(key: str) -> tuple[str, str]:
    section, _, name = key.partition(".")
    return section, name


def too_large(
    config: object, pairs: Iterable[tuple[str, str]], write: Callable[[int], str] = size_text
) -> Iterator[Conflict]:
    """The pairs of keys whose first value exceeds the second; `write` shows values."""
    suffix = "_ns" if write is duration_text else ""
    for low, high in pairs:
        value, limit = (attrgetter(name + suffix)(config) for name in (low, high))
        if value > limit:
            reason = f"{low} ({write(value)}) must not exceed {high} ({write(limit)})"
            yield conflict(low, high, reason)


def nearest(name: str, known: Iterable[str], close: float = 0.6) -> str:
    """The known name that a misspelt one probably means; empty: none. `close`: the required
    similarity."""
    import difflib

    return next(iter(difflib.get_close_matches(name, known, 1, close)), "")


def near(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name; empty: none."""
    close = nearest(name, known)
    return f" (did you mean {close}?)" if close else ""


# --- lines of keys ------------------------------------------------------------------------

_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEYS = rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*"
_STATEMENT = lazy_pattern(
    rf"[ \t]*(?:(?P<many>\[\[)[ \t]*(?P<array>{_KEYS})|\[[ \t]*(?P<table>{_KEYS})"
    rf"|(?P<key>{_KEYS})[ \t]*=)"
)
_VALUE_TOKEN = lazy_pattern(
    r'"""(?:\\.|[^\\])*?"""|' + r"'''.*?'''|" + r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'|"
    r"#[^\n]*|[\[\]{}]|\n",
    re.DOTALL,
)

Path = tuple["str | int", ...]


def _parts(keys: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_KEY_PART, keys))


def _end_of_value(source: str, pos: int) -> int:
    depth = 0
    for token in _VALUE_TOKEN.finditer(source, pos):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if token[0] == "\n" and depth <= 0:
            return token.end()
    return len(source)


def key_lines(source: str) -> dict[Path, int]:
    """The line of every key and table of a valid TOML text.

    A table of an array is named by its index: ("storage", "topic", 0, "sync").
    """
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    prefix: Path = ()
    pos, line, counted = 0, 1, 0
    while pos < len(source):
        line += source.count("\n", counted, pos)
        counted = pos
        match = _STATEMENT.match(source, pos)
        if match is None:
            newline = source.find("\n", pos)
            pos = len(source) if newline < 0 else newline + 1
            continue
        if match["key"]:
            path = prefix + _parts(match["key"])
            for depth in range(len(prefix) + 1, len(path) + 1):
                lines.setdefault(path[:depth], line)
        else:
            prefix = _parts(match["array"] or match["table"])
            if match["many"]:
                index = counts.get(prefix, 0)
                counts[prefix] = index + 1
                lines.setdefault(prefix, line)
                prefix = (*prefix, index)
            lines.setdefault(prefix, line)
        pos = _end_of_value(source, match.end())
    return lines
