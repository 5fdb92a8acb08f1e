"""`twinwire import-stan`: takes over the file store of a NATS Streaming server."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvloop

from broker.base import logs
from broker.config.load import ConfigError, load
from broker.net.umask import narrowed
from broker.server import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.config.load import Config
    from broker.importers.stan import Import, Outcome

# What is no folder but says where a database is: a URL, or Go's words for MySQL and PostgreSQL.
_SQL = re.compile(r"\w+://|.*@(tcp|unix)?\(|.*\b(dbname|sslmode)=", re.DOTALL)


@click.command("import-stan")
@click.argument("folder", metavar="DIR")
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--data", metavar="DIR", help="Folder of our logs (default: as `serve`).")
@click.option(
    "--channel",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Only channels of this name; * and > stand for tokens. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Read everything, change nothing.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def import_stan(
    folder: str,
    file: Path | None,
    data: str | None,
    patterns: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
) -> None:
    """Take over DIR, the file store of a stopped NATS Streaming server; nothing in it is changed.

    Run it again when it was interrupted: it goes on where it was. The exit code is 0 when all was
    taken over, 3 when something could not be read (it is listed), 1 when nothing could be done.
    """
    from broker.importers.nsqd import ImportRefusedError
    from broker.importers.stan import importing

    if _SQL.match(folder):
        click.echo(f"import-stan: {folder}: SQL stores are not read, only file stores", err=True)
        sys.exit(limits.EXIT_START_FAILED)
    try:
        config = load(file, os.environ, {} if data is None else {"--data": data})
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    logs.setup("warning", "text", utc=config.log.utc)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    place = Path(config.server.data)
    try:
        with (
            narrowed(),
            importing(Path(folder), place, config, patterns, dry=dry_run) as make,
            runner,
        ):
            outcome = runner.run(_with_bar(make, dry_run, quiet))
    except ImportRefusedError as error:
        click.echo(f"import-stan: {error}", err=True)
        sys.exit(limits.EXIT_START_FAILED)
    _tell(outcome, folder, "found" if dry_run else "taken over")
    if not dry_run:
        _advise(outcome, config)
    sys.exit(limits.EXIT_PARTLY if outcome.remarks or outcome.changed else limits.EXIT_OK)


async def _with_bar(make: Callable[[], Import], dry_run: bool, quiet: bool) -> Outcome:
    work = make()
    if quiet:
        return work.look() if dry_run else await work.run()
    with click.progressbar(length=work.bytes, label="reading", file=sys.stderr) as bar:
        work.advance = bar.update
        return work.look() if dry_run else await work.run()


def _tell(outcome: Outcome, folder: str, done: str) -> None:
    for line in outcome.remarks:
        click.echo(line, err=True)
    if outcome.already:
        click.echo(f"{folder} has been taken over already")
    else:
        for channel in outcome.channels:
            click.echo(str(channel))
        click.echo(
            f"{len(outcome.channels)} channels, {outcome.messages} messages,"
            f" {outcome.clients} clients {done}"
        )
    if outcome.changed:
        click.echo("a server has used it since: what is new there is not read", err=True)


def _advise(outcome: Outcome, config: Config) -> None:
    """What the settings must be for the data to be served."""
    if config.stan.cluster_id != outcome.cluster_id:
        click.echo(f'to be served with stan.cluster_id = "{outcome.cluster_id}"')
    if config.stan.store == "memory":
        click.echo('to be served with stan.store = "file"')
