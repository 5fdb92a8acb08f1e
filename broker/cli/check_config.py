"""`twinwire check-config`: reads a configuration as `serve` does, and starts nothing.

It is separate because each command is a module.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broker.base.redact import redacted
from broker.config.load import ConfigError, Mistake, check_files, load_with_places
from broker.protocols.nats.conf.text import ConfErrors
from broker.protocols.nats.section import nats_settings
from broker.server import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.config.config import Config


def _unusable(config: Config) -> Iterator[tuple[str, str, Exception]]:
    """Section, key and problem of the files that can be read and are not what they should be."""
    if not config.reads_files:
        return
    from broker.bulk.access import TokenFileError, read_tokens
    from broker.console.access import UsersFileError, read_file
    from broker.net.openssl import TlsError
    from broker.net.tls import TlsFiles, server_context

    nsq, bulk, console = config.nsq, config.bulk, config.console
    pairs = {
        "nsq": TlsFiles(nsq.tls_cert, nsq.tls_key, nsq.tls_root_ca_file),
        "bulk": TlsFiles(bulk.tls_cert, bulk.tls_key, bulk.tls_client_ca),
        "console": TlsFiles(console.tls_cert, console.tls_key),
    }
    checks: list[tuple[str, str, Callable[[], object]]] = [
        (section, "tls_cert", partial(server_context, files))
        for section, files in pairs.items()
        if files.certificate
    ]
    if bulk.token_file:
        checks.append(("bulk", "token_file", partial(read_tokens, Path(bulk.token_file))))
    if console.users_file:
        users = partial(read_file, Path(console.users_file), "HASH")
        checks.append(("console", "users_file", users))
    if console.token_file:
        tokens = partial(read_file, Path(console.token_file), "TOKEN")
        checks.append(("console", "token_file", tokens))
    for section, key, check in checks:
        try:
            check()
        except (OSError, TlsError, TokenFileError, UsersFileError) as problem:
            yield section, key, problem


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
        config, given = load_with_places(file, os.environ)
        check_files(config, given)
        mistakes = [
            Mistake(given[section, key][0], f"{section}.{key}", str(problem))
            for section, key, problem in _unusable(config)
        ]
        if mistakes:
            raise ConfigError(mistakes)
        nats_settings(config)
    except (ConfigError, ConfErrors) as error:
        click.echo(redacted(str(error)), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    click.echo(f"{file or 'environment'}: ok")
