"""Reading a block of a configuration: each key once, by any of its names, checked for its type.

Mistakes are gathered, so that all of them can be reported at once. A key that no reader has asked
for when the block is done is unknown, unless some $variable stands for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from broker.base.gotext import UNITS
from broker.base.units import PORT_MAX, SECOND
from broker.protocols.nats.auth import nkeys
from broker.protocols.nats.conf.text import ConfError, ConfNote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.protocols.nats.conf.text import Value

_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
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
PORT_ANY: Final = -1  # the system picks one
_PORT: Final = re.compile(r"[+-]?[0-9]{1,9}")


def words(text: str) -> tuple[str, ...]:
    """Names with blanks between them."""
    return tuple(text.split())


def kind_of(it: object) -> str:
    """What a user calls this type of value."""
    return _KINDS.get(type(it), "a date")


def go_duration(text: str) -> int:
    """Nanoseconds of "1m30s"; ValueError."""
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
    """What is wrong, and what is only doubtful, in the order of reading."""

    def __init__(self, *, tolerant: bool = False) -> None:
        """`tolerant`: unknown keys are only noted."""
        self.errors: list[ConfError] = []
        self.warnings: list[ConfError] = []
        self.tolerant = tolerant

    def add(self, value: Value, reason: str) -> None:
        """An error at the place of this value."""
        self.errors.append(value.error(reason))

    def warn(self, value: Value, reason: str) -> None:
        """What works, and should be written in another way."""
        self.warnings.append(value.error(reason))

    def unknown(self, value: Value, key: str) -> None:
        """A key that no reader has asked for."""
        if self.tolerant:
            self.note(value, f'"{key}" is not known here, and left out')
        else:
            self.add(value, f'unknown field "{key}"')

    def note(self, value: Value, reason: str) -> None:
        """What has no effect here."""
        self.warnings.append(ConfNote(value.file, value.line, value.column, reason))


class Block:
    """One map of the configuration."""

    def __init__(self, value: Value, mistakes: Mistakes, what: str) -> None:
        """`what`: how the map is spoken of."""
        self.value = value
        self.mistakes = mistakes
        self.what = what
        self.all: dict[str, Value] = {}  # by their names in lower case
        self.left: dict[str, str] = {}  # keys not asked for yet: that name, and as written
        if isinstance(value.it, dict):
            self.all = {key.lower(): entry for key, entry in value.it.items()}
            self.left = {key.lower(): key for key in value.it}
        else:
            mistakes.add(value, f"{what}: expected a map, got {kind_of(value.it)}")

    def take(self, *names: str) -> Value | None:
        """The entry with one of these names, the last of them if there are several."""
        for name in names:
            self.left.pop(name, None)
        return self.peek(*names)

    def peek(self, *names: str) -> Value | None:
        """The same, without asking for it."""
        found = [self.all[name] for name in names if name in self.all]
        return found[-1] if found else None

    def has(self, *names: str) -> bool:
        """Whether one of these is given."""
        return self.peek(*names) is not None

    def done(self, variables: bool = True) -> None:
        """Whatever is left is unknown; `variables`: unless some $variable stands for it."""
        for key, entry in self.rest():
            if not (entry.used and variables):
                self.mistakes.unknown(entry, key)

    def rest(self) -> list[tuple[str, Value]]:
        """The keys that were not asked for; from here on they count as asked for."""
        found = [(written, self.all[key]) for key, written in self.left.items()]
        self.left.clear()
        return found

    def wrong(self, reason: str, *names: str) -> None:
        """A mistake of the entry with one of these names, or else of the block."""
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
        """Port to listen on: -1 for any, 0 as if it was not given."""
        if not self.has(*names):
            return None
        return self.number(*names, low=PORT_ANY, high=PORT_MAX)

    def duration(
        self, *names: str, default: int, seconds: str = "warn", never: bool = False
    ) -> int:
        """A string with units, in nanoseconds; 0 stands for the default.

        `seconds`: whether a plain number of them is taken: "no", "warn" (it is doubtful), "yes",
        "fraction" (and it may have one). `never`: a negative one has that meaning, and is -1.
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
        """Strings with their places."""
        entry = self.take(*names)
        if entry is not None:
            yield from self.texts_of(entry, names[0], only_array=only_array)

    def texts_of(
        self, entry: Value, name: str, only_array: bool = False
    ) -> Iterator[tuple[str, Value]]:
        """Strings of an entry that was taken."""
        if only_array and not isinstance(entry.it, list):
            self.mistakes.add(entry, f"{name}: expected an array, got {kind_of(entry.it)}")
            return
        for one in entry.it if isinstance(entry.it, list) else [entry]:
            if isinstance(one.it, str):
                yield one.it, one
            else:
                self.mistakes.add(one, f"{name}: expected a string, got {kind_of(one.it)}")

    def listen(self, *names: str) -> tuple[str, int] | None:
        """HOST:PORT or a port; None when it is not given or wrong."""
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
        """A map inside of this one."""
        entry = self.take(*names)
        return None if entry is None else Block(entry, self.mistakes, what or names[0])

    def items(self, *names: str) -> list[Value]:
        """Entries of an array."""
        entry = self.take(*names)
        if entry is None:
            return []
        if isinstance(entry.it, list):
            return entry.it
        self.mistakes.add(entry, f"{names[0]}: expected an array, got {kind_of(entry.it)}")
        return []

    def blocks(self, *names: str, what: str) -> list[Block]:
        """An array of maps; what is not a map is reported and left out."""
        found = [Block(one, self.mistakes, what) for one in self.items(*names)]
        return [block for block in found if isinstance(block.value.it, dict)]

    def key(self, kind: str, *names: str) -> str:
        """A public key of that kind."""
        entry = self.peek(*names)
        found = self.text(*names)
        if entry is not None and isinstance(entry.it, str) and not nkeys.is_public(kind, found):
            self.mistakes.add(entry, f"{names[0]}: not the public key of {_OWNERS[kind]}")
        return found
