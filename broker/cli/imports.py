"""`twinwire import-nsqd`: takes over the topics, channels and messages of an nsqd."""

from __future__ import annotations

import asyncio
import os
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

    from broker.importers.nsqd import Import, Outcome


@click.command("import-nsqd")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--data", metavar="DIR", help="Folder of our logs (default: as `serve`).")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def import_nsqd(folder: Path, file: Path | None, data: str | None, quiet: bool) -> None:
    """Take over the data folder DIR of a stopped nsqd; nothing in it is changed.

    Run it again when it was interrupted: it goes on where it was. The exit code is 0 when all was
    taken over, 3 when something could not be read (it is listed), 1 when nothing could be done.
    """
    from broker.importers.nsqd import ImportRefusedError, importing

    try:
        config = load(file, os.environ, {} if data is None else {"--data": data})
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    logs.setup("warning", "text", utc=config.log.utc)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        with narrowed(), importing(folder, Path(config.server.data), config) as make, runner:
            outcome = runner.run(_with_bar(make, quiet))
    except ImportRefusedError as error:
        click.echo(f"import-nsqd: {error}", err=True)
        sys.exit(limits.EXIT_START_FAILED)
    for line in outcome.remarks:
        click.echo(line, err=True)
    if outcome.already:
        click.echo(f"{folder} has been taken over already")
    else:
        click.echo(f"{outcome.topics} topics, {outcome.messages} messages taken over")
    if outcome.changed:
        click.echo("an nsqd has used it since: what is new there is not read", err=True)
    sys.exit(limits.EXIT_PARTLY if outcome.remarks or outcome.changed else limits.EXIT_OK)


async def _with_bar(make: Callable[[], Import], quiet: bool) -> Outcome:
    work = make()
    if quiet:
        return await work.run()
    with click.progressbar(length=work.bytes, label="reading", file=sys.stderr) as bar:
        work.advance = bar.update
        return await work.run()
