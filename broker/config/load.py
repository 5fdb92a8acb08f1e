"""Reads the configuration: one TOML file, the environment and flags, into frozen dataclasses.

Flags override the environment, the environment the file, the file the defaults. Only this module
reads them. All errors are reported together, each with its origin.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from broker.base import settings as kinds
from broker.base.patterns import lazy_pattern
from broker.base.redact import redacted
from broker.base.settings import near, nearest, settings
from broker.base.units import COUNT_MAX
from broker.base.values import NamedTuple
from broker.config.check import conflicts, syntax_error, unreadable
from broker.config.config import Config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECTIONS: dict[str, type[Any]] = {f.name: type(f.default) for f in dataclasses.fields(Config)}
# Flags of `twinwire serve` that set a key.
FLAGS = {
    flag: (name, key.name)
    for name, section in SECTIONS.items()
    for key in dataclasses.fields(section)
    if (flag := key.metadata.get("flag"))
}
# Keys that are lists of tables, each for the names that its pattern matches.
LISTS = {
    (name, key): entry
    for name, section in SECTIONS.items()
    for key, entry in kinds.tables(section).items()
}

PREFIX = "TWINWIRE_"
CLOSE = 0.75  # the names of variables have much in common: a hint needs more than that
# Variables with this prefix that are not settings: of the build and of the test suite.
_OTHERS = lazy_pattern(r"TWINWIRE_(BUILD|TEST_\w+)")
# What Kubernetes sets in each pod for a Service of the namespace whose name begins with "twinwire".
_SERVICE_LINK = lazy_pattern(
    r"TWINWIRE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class Mistake(NamedTuple):
    """One error in the configuration."""

    origin: str  # file:line, file:line:column, "environment", or a flag
    key: str  # section.key, or empty
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class ConfigError(Exception):
    """The configuration is invalid."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__(redacted("\n".join(map(str, mistakes))))
        self.mistakes = mistakes


def _line_of(mistake: Mistake) -> int:
    # Errors outside files come last, in the order in which they were found.
    match = re.search(r":(\d+)$", mistake.origin)
    return int(match[1]) if match else COUNT_MAX


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Config:
    """Read all sources; `flags` maps names of FLAGS to text. ConfigError lists all errors."""
    return load_with_origins(file, environment, flags)[0]


Given = dict[tuple[str, str], tuple[str, object]]


def load_with_origins(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> tuple[Config, Given]:
    """The same, and by section and key the origin and the value of each given setting, as it was
    written."""
    reading = _Reading()
    if file is not None:
        reading.take_file(file)
    reading.take_environment(environment or {})
    reading.take_flags(flags or {})
    return reading.finish(), reading.found


def check_files(config: Config, given: Given) -> None:
    """ConfigError if a file that the configuration names cannot be read."""
    mistakes = [
        Mistake(given[section, key][0], f"{section}.{key}", reason)
        for section, key, reason in unreadable(config)
    ]
    if mistakes:
        raise ConfigError(mistakes)


def read_toml(file: Path) -> dict[str, Any]:
    """Parse a TOML file that is not this process's configuration. OSError; ValueError: it is not
    TOML."""
    import tomllib

    return tomllib.loads(file.read_bytes().decode("utf-8-sig"))


def _unknown(variable: str, variables: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """What is unknown in the name of a variable, and the one that is probably meant, or nothing."""
    for section, cls in SECTIONS.items():
        head = f"{PREFIX}{section}_".upper()
        if variable.startswith(head):
            key = variable.removeprefix(head).lower()
            close = nearest(key, settings(cls))
            return f"[{section}] has no key {key}", close and f"{head}{close.upper()}"
    return "it begins with no section's name", nearest(variable, variables, CLOSE)


class _Reading:
    """The values found so far, each with its origin, and the errors."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self.found: Given = {}
        self.lists: dict[tuple[str, str], tuple[Any, ...]] = {}
        # Settings whose given value is not known: it is invalid, or under a misspelt name.
        self.unread: set[tuple[str, str]] = set()

    def wrong(self, origin: str, key: str, reason: str) -> None:
        self.mistakes.append(Mistake(origin, key, reason))

    def take_file(self, file: Path) -> None:
        import tomllib  # few brokers have a file

        try:
            # Editors of Windows write a byte order mark.
            source = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
            document = tomllib.loads(source)
        except OSError as error:
            return self.wrong(str(file), "", f"cannot be read: {error.strerror}")
        except UnicodeDecodeError as error:
            return self.wrong(str(file), "", f"is not UTF-8 text (byte {error.start + 1})")
        except RecursionError:
            return self.wrong(str(file), "", "values are nested too deeply")
        except tomllib.TOMLDecodeError as error:
            position, reason = syntax_error(str(error), source)
            return self.wrong(f"{file}:{position}", "", reason)
        lines = kinds.key_lines(source)

        def origin_of(*path: str | int) -> str:
            while path and path not in lines:
                path = path[:-1]
            return f"{file}:{lines.get(path, 1)}"

        for name, table in document.items():
            if name not in SECTIONS:
                self.wrong(origin_of(name), name, f"unknown section{near(name, SECTIONS)}")
            elif not isinstance(table, dict):
                self.wrong(origin_of(name), name, "is a section: write [" + name + "]")
            else:
                known = settings(SECTIONS[name])
                for key, value in table.items():
                    if (name, key) in LISTS:
                        self._take_list((name, key), value, origin_of)
                    elif key not in known:
                        reason = f"unknown key{near(key, known)}"
                        self.wrong(origin_of(name, key), f"{name}.{key}", reason)
                        self.unread.add((name, nearest(key, known)))
                    else:
                        self.found[name, key] = (origin_of(name, key), value)
        return None

    def _take_list(self, name: tuple[str, str], tables: object, origin_of: Any) -> None:
        shown = ".".join(name)
        if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
            return self.wrong(origin_of(*name), shown, f"is a list: write [[{shown}]]")
        entries = []
        for index, table in enumerate(tables):
            label = f"{shown}[{index + 1}]"
            if not table.get("pattern"):
                self.wrong(origin_of(*name, index), label, "pattern is missing")
            values = {
                (label, key): (origin_of(*name, index, key), value) for key, value in table.items()
            }
            entries.append(self._build(LISTS[name], label, values))
        self.lists[name] = tuple(entries)
        self.found[name] = (origin_of(*name), tables)
        return None

    def take_environment(self, environment: Mapping[str, str]) -> None:
        variables = {
            f"{PREFIX}{section}_{key}".upper(): (section, key)
            for section, cls in SECTIONS.items()
            for key in settings(cls)
        }
        for variable, value in sorted(environment.items()):
            if variable in variables:
                section, key = variables[variable]
                kind = settings(SECTIONS[section])[key][1]
                self.found[section, key] = (variable, kind.from_text(value))
            elif variable.upper().startswith(PREFIX) and not (
                _OTHERS.fullmatch(variable) or _SERVICE_LINK.fullmatch(variable)
            ):
                reason, meant = _unknown(variable.upper(), variables)
                if meant:
                    self.unread.add(variables[meant])
                    reason += f" (did you mean {meant}?)"
                self.wrong(variable, "", f"unknown variable: {reason}")

    def take_flags(self, flags: Mapping[str, str]) -> None:
        for flag, value in flags.items():
            section, key = FLAGS[flag]
            kind = settings(SECTIONS[section])[key][1]
            self.found[section, key] = (flag, kind.from_text(value))

    def finish(self) -> Config:
        sections = {name: self._build(cls, name, self.found) for name, cls in SECTIONS.items()}
        for (section, name), entries in self.lists.items():
            sections[section] = dataclasses.replace(sections[section], **{name: entries})
        config = Config(**sections)
        for keys, reason in conflicts(config):
            if self.unread.isdisjoint(keys):
                key = next((k for k in keys if k in self.found), keys[0])
                origin = self.found[key][0] if key in self.found else "default"
                self.wrong(origin, ".".join(key), reason)
        if self.mistakes:
            raise ConfigError(sorted(self.mistakes, key=_line_of))
        return config

    def _build(
        self, section: type, label: str, found: Mapping[tuple[str, str], tuple[str, object]]
    ) -> Any:
        known = settings(section)
        hidden = {f.name for f in dataclasses.fields(section) if not f.repr}
        values = {}
        for (owner, key), (origin, raw) in found.items():
            if owner != label or (owner, key) in LISTS:
                continue
            if key not in known:
                self.wrong(origin, f"{label}.{key}", f"unknown key{near(key, known)}")
                continue
            attribute, kind = known[key]
            try:
                values[attribute] = kind.read(raw)
            except ValueError as error:
                reason = str(error)
                if attribute in hidden:  # without the given value, which may be a secret
                    reason = reason.partition(", got")[0]
                self.wrong(origin, f"{label}.{key}", reason)
                self.unread.add((label, key))
        return section(**values)
