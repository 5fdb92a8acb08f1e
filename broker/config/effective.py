"""The settings in force, each with where it comes from, without secrets."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.base.redact import HIDDEN, redacted
from broker.base.settings import settings
from broker.config.load import SECTIONS, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.config.load import Given

FILE: Final = "twinwire.toml"
DEFAULT: Final = "default"
_SOURCE_TREE: Final = Path(__file__).resolve().parents[2] / "conf" / FILE


class Entry(NamedTuple):
    """One setting."""

    section: str
    key: str
    value: str  # as TOML writes it
    origin: str  # DEFAULT, FILE:LINE, an environment variable, or a flag


def defaults_file() -> Path:
    """The file with every key and its default, in a source tree or as a package installed it.
    FileNotFoundError."""
    if _SOURCE_TREE.is_file():
        return _SOURCE_TREE
    for entry in importlib.metadata.files("twinwire") or ():
        if entry.name == FILE:
            return Path(str(entry.locate()))
    raise FileNotFoundError(FILE)


def entries(given: Given, *, changed: bool = False) -> Iterator[Entry]:
    """All settings in the order of the file of defaults. `changed`: only those that are given, with
    another value than the default. FileNotFoundError."""
    for section, keys in read_toml(defaults_file()).items():
        shown = {
            key: given.get((section, key), (DEFAULT, value))
            for key, value in keys.items()
            if not changed or _differs(section, key, value, given)
        }
        # Tables of single topics are not in the file of defaults.
        shown |= {k: v for (s, k), v in given.items() if s == section and k not in keys}
        hidden = {each.name for each in fields(SECTIONS[section]) if not each.repr}
        for key, (origin, value) in shown.items():
            yield Entry(section, key, _shown(key, value, hidden), origin)


def _differs(section: str, key: str, default: object, given: Given) -> bool:
    """Whether a value is given that is not the default, however it is written."""
    if (section, key) not in given:
        return False
    read = settings(SECTIONS[section])[key][1].read
    return bool(read(given[section, key][1]) != read(default))


def _shown(key: str, value: object, hidden: set[str]) -> str:
    line = redacted(f"{key} = {_toml(HIDDEN if key in hidden and value else value)}")
    return line.removeprefix(f"{key} = ")


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
