"""Reading a block of a configuration: each key once, by any of its names, checked for its type.

Mistakes are collected, so that all of them can be reported at once. A key that no reader has
requested at the end of the block is unknown, unless a $variable refers to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.base.gotext import UNITS
from broker.base.patterns import lazy_pattern
from broker.base.units import PORT_MAX, SECOND
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.conf import later
from broker.protocols.nats.conf.text import ConfError, ConfNote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.protocols.nats.conf.text import Value

_PART: Final = lazy_pattern(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_KINDS: Final = {str: "a string", int: "a number", float: "a number with a fraction",
                 bool: "true or false", list: "an array", dict: "a map"}  # fmt: skip
_OWNERS: Final = {
    nkeys.ACCOUNT: "an account (A...)",
    nkeys.USER: "a user (U...)",
    nkeys.CURVE: "a curve (X...)",
}
_INT64: Final = (1 << 63) - 1
INT32: Final = (1 << 31) - 1
_DURATION_MAX: Final = 256  # characters
PORT_ANY: Final = -1  # the system chooses one
_PORT: Final = lazy_pattern(r"[+-]?[0-9]{1,9}")


def words(text: str) -> tuple[str, ...]:
    """Split a text at blanks."""
    return tuple(text.split())


def kind_of(it: object) -> str:
    """The user's term for this type of value."""
    return _KINDS.get(type(it), "a date")


def go_duration(text: str) -> int:
    """The nanoseconds in "1m30s"; ValueError."""
    rest = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if rest == "0":
        return 0
    total, at = 0, 0
    if len(rest) > _DURATION_MAX:
        raise ValueError("is not a duration")
    while match := _PART.match(rest, at):
        whole, _, part = match[1].partition(".")
        unit = UNITS[match[2]]
        total += int(whole or 0) * unit + (int(part) * unit // 10 ** len(part) if part else 0)
        at = match.end()
    if at == 0 or at != len(rest) or total > _INT64:
        raise ValueError(f"{text!r} is not a duration")
    return -total if text.startswith("-") else total


class Mistakes:
    """Errors and warnings of a configuration, in the order of reading."""

    def __init__(self, *, tolerant: bool = False) -> None:
        """`tolerant`: unknown keys are only noted."""
        self.errors: list[ConfError] = []
        self.warnings: list[ConfError] = []
        self.tolerant = tolerant

    def add(self, value: Value, reason: str) -> None:
        """Add an error at the position of this value."""
        self.errors.append(value.error(reason))

    def warn(self, value: Value, reason: str) -> None:
        """Add a warning: the value is used, but should be written in another way."""
        self.warnings.append(value.error(reason))

    def unknown(self, value: Value, key: str, block: str = "") -> None:
        """Add an error, or a note if tolerant, for an unknown key in that block."""
        if self.tolerant:
            self.note(value, f'"{key}" is not known here, and left out')
        else:
            self.add(value, f'unknown field "{key}"{later.remark(block, key)}')

    def note(self, value: Value, reason: str) -> None:
        """Add a note: the value has no effect here."""
        self.warnings.append(ConfNote(value.file, value.line, value.column, reason))


class Block:
    """One map of the configuration."""

    def __init__(self, value: Value, mistakes: Mistakes, what: str) -> None:
        """`what`: the map's name in messages."""
        self.value = value
        self.mistakes = mistakes
        self.what = what
        self.all: dict[str, Value] = {}  # by lower-case name
        self.unread: dict[str, str] = {}  # keys not requested yet: lower-case name -> as written
        if isinstance(value.it, dict):
            self.all = {key.lower(): entry for key, entry in value.it.items()}
            self.unread = {key.lower(): key for key in value.it}
        else:
            mistakes.add(value, f"{what}: expected a map, got {kind_of(value.it)}")

    def take(self, *names: str) -> Value | None:
        """The entry with one of these names, the last one of several; marks them as read."""
        for name in names:
            self.unread.pop(name, None)
        return self.peek(*names)

    def peek(self, *names: str) -> Value | None:
        """The entry with one of these names, without marking it as read."""
        found = [self.all[name] for name in names if name in self.all]
        return found[-1] if found else None

    def has(self, *names: str) -> bool:
        """Whether an entry with one of these names exists."""
        return self.peek(*names) is not None

    def done(self, variables: bool = True) -> None:
        """Report unread keys as unknown; `variables`: except those that a $variable refers to."""
        for key, entry in self.rest():
            if not (entry.used and variables):
                self.mistakes.unknown(entry, key, self.what)

    def rest(self) -> list[tuple[str, Value]]:
        """The unread keys with their values; marks them as read."""
        found = [(written, self.all[key]) for key, written in self.unread.items()]
        self.unread.clear()
        return found

    def wrong(self, reason: str, *names: str) -> None:
        """Add a mistake at the entry with one of these names, or else at the block."""
        self.mistakes.add(self.peek(*names) or self.value, reason)

    # --- values

    def _typed(self, kind: type, what: str, names: tuple[str, ...]) -> Any:
        entry = self.take(*names)
        if entry is None:
            return None
        it = entry.it
        if isinstance(it, kind) and not (isinstance(it, bool) and kind is not bool):
            return it
        self.mistakes.add(entry, f"{names[0]}: expected {what}, got {kind_of(it)}")
        return None

    def text(self, *names: str, default: str = "") -> str:
        """A string."""
        found = self._typed(str, "a string", names)
        return default if found is None else str(found)

    def name(self, what: str, *names: str) -> str:
        """A name, which must not contain blanks."""
        text = self.text(*names)
        if " " in text:
            self.wrong(f"{what} name cannot contain spaces", *names)
        return text

    def flag(self, *names: str, default: bool = False) -> bool:
        """true or false."""
        found = self._typed(bool, "true or false", names)
        return default if found is None else bool(found)

    def number(
        self, *names: str, default: int = 0, low: int | None = None, high: int = _INT64
    ) -> int:
        """A whole number."""
        entry = self.peek(*names)
        found = self._typed(int, "a number", names)
        if found is None:
            return default
        assert entry is not None
        if low is not None and found < low:
            self.mistakes.add(entry, f"{names[0]}: {found} is too small, {low} is the least")
            return default
        if found > high:
            self.mistakes.add(entry, f"{names[0]}: {found} is too big, {high} is the most")
            return default
        return int(found)

    def port(self, *names: str) -> int | None:
        """A port to listen on: -1 for any; 0 is the same as absent."""
        if not self.has(*names):
            return None
        return self.number(*names, low=PORT_ANY, high=PORT_MAX)

    def duration(
        self, *names: str, default: int, seconds: str = "warn", never: bool = False
    ) -> int:
        """A string with units, in nanoseconds; 0 means the default.

        `seconds`: whether a plain number of seconds is valid: "no", "warn" (valid with a warning),
        "yes", "fraction" (may have one). `never`: a negative duration means never, and is -1.
        """
        entry = self.take(*names)
        if entry is None:
            return default
        found = self._duration_of(entry, names[0], seconds)
        if found is not None and found < 0:
            if never:
                return -1
            self.mistakes.add(entry, f"{names[0]}: must not be negative")
        return default if not found or found < 0 else found

    def _duration_of(self, entry: Value, name: str, seconds: str) -> int | None:
        it = entry.it
        if isinstance(it, str):
            try:
                return go_duration(it)
            except ValueError as problem:
                self.mistakes.add(entry, f"{name}: {problem}")
                return None
        number = isinstance(it, int) or (isinstance(it, float) and seconds == "fraction")
        if not number or isinstance(it, bool) or seconds == "no":
            self.mistakes.add(entry, f"{name}: expected a duration, got {kind_of(it)}")
            return None
        if it > _INT64 // SECOND:
            self.mistakes.add(entry, f"{name}: {it} seconds are too many")
            return None
        found = int(it * SECOND)
        if seconds == "warn":
            self.mistakes.warn(entry, f'{name}: a number of seconds: write "{it}s"')
        return found

    def texts(self, *names: str, only_array: bool = False) -> tuple[str, ...]:
        """A string, or an array of strings."""
        return tuple(text for text, _ in self.each_text(*names, only_array=only_array))

    def each_text(self, *names: str, only_array: bool = False) -> Iterator[tuple[str, Value]]:
        """Strings with their positions."""
        entry = self.take(*names)
        if entry is not None:
            yield from self.texts_of(entry, names[0], only_array=only_array)

    def texts_of(
        self, entry: Value, name: str, only_array: bool = False
    ) -> Iterator[tuple[str, Value]]:
        """The strings of an entry that `take` returned."""
        if only_array and not isinstance(entry.it, list):
            self.mistakes.add(entry, f"{name}: expected an array, got {kind_of(entry.it)}")
            return
        for one in entry.it if isinstance(entry.it, list) else [entry]:
            if isinstance(one.it, str):
                yield one.it, one
            else:
                self.mistakes.add(one, f"{name}: expected a string, got {kind_of(one.it)}")

    def pairs(self, kind: type, *names: str) -> tuple[tuple[str, Any], ...]:
        """The entries of a map, all of this type."""
        inner = self.block(*names)
        found = inner.rest() if inner is not None else []
        for name, value in found:
            if not isinstance(value.it, kind):
                reason = f"{names[0]}: {name}: expected {_KINDS[kind]}, got {kind_of(value.it)}"
                self.mistakes.add(value, reason)
        return tuple((name, value.it) for name, value in found if isinstance(value.it, kind))

    def choice(self, options: tuple[str, ...], *names: str) -> str:
        """One of `options`; the first of them if the key is absent."""
        found = self.text(*names, default=options[0])
        if found not in options:
            *most, last = (f"'{one}'" for one in options)
            self.wrong(f"{names[0]} must be {', '.join(most)} or {last}", *names)
        return found

    def listen(self, *names: str) -> tuple[str, int] | None:
        """HOST:PORT or a port; None if it is absent or invalid."""
        entry = self.take(*names)
        if entry is None:
            return None
        if isinstance(entry.it, int) and not isinstance(entry.it, bool):
            host, port = "", str(entry.it)
        elif isinstance(entry.it, str):
            host, colon, port = entry.it.rpartition(":")
            if not colon or (":" in host) != (host.startswith("[") and host.endswith("]")):
                self.mistakes.add(entry, f"{names[0]}: {entry.it!r} is not of the form HOST:PORT")
                return None
        else:
            reason = f"{names[0]}: expected PORT or HOST:PORT, got {kind_of(entry.it)}"
            self.mistakes.add(entry, reason)
            return None
        if not _PORT.fullmatch(port) or not PORT_ANY <= int(port) <= PORT_MAX:
            self.mistakes.add(entry, f"{names[0]}: {port!r} is not a port")
            return None
        return host.strip("[]"), int(port)

    def block(self, *names: str, what: str = "") -> Block | None:
        """A map inside this one."""
        entry = self.take(*names)
        return None if entry is None else Block(entry, self.mistakes, what or names[0])

    def items(self, *names: str) -> list[Value]:
        """The entries of an array."""
        entry = self.take(*names)
        if entry is None:
            return []
        if isinstance(entry.it, list):
            return entry.it
        self.mistakes.add(entry, f"{names[0]}: expected an array, got {kind_of(entry.it)}")
        return []

    def blocks(self, *names: str, what: str) -> list[Block]:
        """An array of maps; other values are reported and left out."""
        found = [Block(one, self.mistakes, what) for one in self.items(*names)]
        return [block for block in found if isinstance(block.value.it, dict)]

    def key(self, kind: str, *names: str) -> str:
        """A public key of that kind."""
        entry = self.peek(*names)
        found = self.text(*names)
        if entry is not None and isinstance(entry.it, str) and not nkeys.is_public(kind, found):
            self.mistakes.add(entry, f"{names[0]}: not the public key of {_OWNERS[kind]}")
        return found
