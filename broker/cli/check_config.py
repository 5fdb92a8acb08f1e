"""`twinwire check-config`: reads a configuration as `serve` would, and starts nothing.

It stands alone as every command does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from broker.base.redact import redacted
from broker.config.load import ConfigError, load
from broker.protocols.nats.conf.section import nats_settings
from broker.protocols.nats.conf.text import ConfErrors
from broker.server import limits


@click.command("check-config")
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="The file to read; without it, the environment alone is checked.",
)
def check_config(file: Path | None) -> None:
    """Read a configuration file and the environment as `serve` would.

    Every mistake is written as file:line: key: reason, and the exit code is then 2.
    """
    try:
        nats_settings(load(file, os.environ))
    except (ConfigError, ConfErrors) as error:
        click.echo(redacted(str(error)), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    click.echo(f"{file or 'environment'}: ok")
