"""`twinwire check-config`: reads a configuration as `serve` does, and starts nothing.

It is separate because each command is a module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker.base.redact import redacted
from broker.config.load import ConfigError, Mistake, check_files, load_with_origins
from broker.protocols.nats.conf.text import ConfErrors
from broker.protocols.nats.section import nats_settings
from broker.server import limits
from broker.server.files import unusable

if TYPE_CHECKING:
    from broker.config.config import Config
    from broker.config.load import Given


@click.command("check-config")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option(
    "-c", "--config", "option", metavar="FILE", type=click.Path(path_type=Path),
    help="The same as FILE, as for serve.",
)  # fmt: skip
def check_config(path: Path | None, option: Path | None) -> None:
    """Check a configuration FILE and the environment as `serve` reads them; without FILE only the
    environment.

    Each error is reported as FILE:LINE: KEY: REASON, and the exit code is then 2.
    """
    if path is not None and option is not None:
        raise click.UsageError("give FILE or --config FILE, not both")
    file = path or option
    try:
        config, given = load_with_origins(file, os.environ)
        check_files(config, given)
        found = "\n".join(mistakes(config, given))
    except ConfigError as error:
        found = redacted(str(error))
    if found:
        click.echo(found, err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    click.echo(f"{file or 'environment'}: ok")


def mistakes(config: Config, given: Given) -> list[str]:
    """The errors in the files that settings name, or else in the file of [nats] config_file; each
    with its place."""
    found = [
        str(Mistake(given[section, key][0], f"{section}.{key}", str(problem)))
        for section, key, problem in unusable(config)
    ]
    if not found:
        try:
            nats_settings(config)
        except ConfErrors as problem:
            found = str(problem).splitlines()
    return [redacted(text) for text in found]
