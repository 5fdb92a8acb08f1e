"""`twinwire config`: prints the settings in force with their sources, or the defaults."""

from __future__ import annotations

import os
import sys
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker.config.effective import defaults_file, entries
from broker.config.load import ConfigError, load_with_origins
from broker.server import limits

if TYPE_CHECKING:
    from broker.config.load import Given


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
        _, given = load_with_origins(file, os.environ)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    click.echo(in_force(given, changed=changed), nl=False)


def in_force(given: Given, *, changed: bool = False) -> str:
    """The settings in force with their sources, without secrets. `changed`: only those that differ
    from the default."""
    lines: list[str] = []
    for section, found in groupby(entries(given, changed=changed), key=attrgetter("section")):
        shown = [(f"{one.key} = {one.value}", one.origin) for one in found]
        lines.append(f"[{section}]")
        width = min(max(len(line) for line, _ in shown), 60)
        lines += [f"{line:{width}}  # {origin}" for line, origin in shown]
        lines.append("")
    return "".join(f"{line}\n" for line in lines)
