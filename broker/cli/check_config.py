"""`twinwire check-config`: reads a configuration as `serve` does, and starts nothing.

It is separate because each command is a module.
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
    help="TOML file; without it only the environment is checked.",
)
def check_config(file: Path | None) -> None:
    """Check a configuration file and the environment as `serve` reads them.

    Each error is reported as FILE:LINE: KEY: REASON, and the exit code is then 2.
    """
    try:
        nats_settings(load(file, os.environ))
    except (ConfigError, ConfErrors) as error:
        click.echo(redacted(str(error)), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    click.echo(f"{file or 'environment'}: ok")
