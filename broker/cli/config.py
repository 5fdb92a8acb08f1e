"""`twinwire config`: prints the settings in force with the place of each, or the defaults."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from broker.base.redact import HIDDEN, redacted
from broker.config.load import SECTIONS, ConfigError, load_with_places, read_toml
from broker.server import limits

if TYPE_CHECKING:
    from broker.config.load import Given

FILE: Final = "twinwire.toml"
_SOURCE_TREE: Final = Path(__file__).resolve().parents[2] / "conf" / FILE


def defaults_file() -> Path:
    """The file with every key and its default, in a source tree or as a package installed it.
    FileNotFoundError."""
    if _SOURCE_TREE.is_file():
        return _SOURCE_TREE
    for entry in importlib.metadata.files("twinwire") or ():
        if entry.name == FILE:
            return Path(str(entry.locate()))
    raise FileNotFoundError(FILE)


@click.command("config")
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file, as for serve."
)
@click.option(
    "--defaults", is_flag=True, help="Print a file with every key, its default and a comment."
)
@click.option("--effective", is_flag=True, help="Print the settings in force: the default.")
@click.option("--changed", is_flag=True, help="Print only keys that are not at their defaults.")
def config(file: Path | None, *, defaults: bool, effective: bool, changed: bool) -> None:
    """Print the settings that `serve` would use, each with the place it comes from.

    The place is FILE:LINE, an environment variable, or `default`. Secrets are not shown.
    """
    if defaults and (effective or changed or file is not None):
        raise click.UsageError("--defaults takes no other option")
    if defaults:
        click.echo(defaults_file().read_text(), nl=False)
        return
    try:
        _, given = load_with_places(file, os.environ)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    click.echo(in_force(given, changed=changed), nl=False)


def in_force(given: Given, *, changed: bool = False) -> str:
    """The settings in force with their places, without secrets. `changed`: only those that are
    given."""
    lines: list[str] = []
    for section, keys in read_toml(defaults_file()).items():
        shown = {
            key: given.get((section, key), ("default", value))
            for key, value in keys.items()
            if not changed or (section, key) in given
        }
        # Tables of single topics are not in the file of defaults.
        shown |= {k: v for (s, k), v in given.items() if s == section and k not in keys}
        if shown:
            lines.append(f"[{section}]")
            hidden = {each.name for each in fields(SECTIONS[section]) if not each.repr}
            width = max(len(_line(key, value, hidden)) for key, (_, value) in shown.items())
            for key, (place, value) in shown.items():
                lines.append(f"{_line(key, value, hidden):{min(width, 60)}}  # {place}")
            lines.append("")
    return "".join(f"{line}\n" for line in lines)


def _line(key: str, value: object, hidden: set[str]) -> str:
    return redacted(f"{key} = {_toml(HIDDEN if key in hidden and value else value)}")


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
