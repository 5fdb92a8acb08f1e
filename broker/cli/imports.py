"""`twinwire import-nsqd`, `import-stan`, `import-jetstream`: import the data of another server.
`adopt-channels`: convert channels of NATS Streaming to streams."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TextIO

import click
import uvloop

from broker.base import logs
from broker.config.config import Config
from broker.config.load import ConfigError, load
from broker.net.umask import narrowed
from broker.server import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from broker.importers import channels, nsqd, stan
    from broker.importers.jetstream import importer as jetstream
    from broker.importers.outcome import ImportOutcome

# A database instead of a folder: a URL, or a Go data source name of MySQL or PostgreSQL.
_SQL = re.compile(r"\w+://|.*@(tcp|unix)?\(|.*\b(dbname|sslmode)=", re.DOTALL)


def _config(file: Path | None, data: str | None) -> Config:
    """The configuration, with `data` as its data folder if given. Exits if it is invalid."""
    try:
        config = load(file, os.environ, {} if data is None else {"--data": data})
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(limits.EXIT_BAD_CONFIG)
    logs.setup("warning", "text", utc=config.log.utc)
    return config


def _refuse(command: str, reason: object) -> NoReturn:
    click.echo(f"{command}: {reason}", err=True)
    sys.exit(limits.EXIT_START_FAILED)


class _Import(Protocol):
    """An import that reports its progress."""

    advance: Callable[[int], object]  # gets the number of bytes read

    @property
    def bytes(self) -> int:
        """The total of what `advance` receives."""


@contextmanager
def _progress(work: _Import, quiet: bool) -> Iterator[None]:
    """Show a progress bar while `work` runs."""
    if quiet:
        yield
        return
    with click.progressbar(length=work.bytes, label="reading", file=sys.stderr) as bar:
        work.advance = bar.update
        yield


def _report(
    outcome: ImportOutcome, folder: object, found: Iterable[object], server: str = "a server"
) -> None:
    """Print the outcome; `found`: a line for each imported item."""
    for line in outcome.remarks:
        click.echo(line, err=True)
    for part in [f"{folder} was imported before"] if outcome.already else found:
        click.echo(str(part))
    if outcome.changed:
        click.echo(f"{server} has used it since: its newer data is not imported", err=True)


def _exit(outcome: ImportOutcome) -> NoReturn:
    """Exit with the code that shows whether everything was imported."""
    sys.exit(limits.EXIT_PARTLY if outcome.remarks or outcome.changed else limits.EXIT_OK)


# --- nsqd


@click.command("import-nsqd")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file.")
@click.option(
    "--data", metavar="DIR", help="Data folder to import into.  [default: that of `serve`]"
)
@click.option("--quiet", is_flag=True, help="No progress bar.")
def import_nsqd(folder: Path, file: Path | None, data: str | None, quiet: bool) -> None:
    """Import DIR, the data folder of a stopped nsqd. Nothing in it is changed.

    An interrupted import continues when you run it again. The exit code is 0 if everything was
    imported, 3 if something could not be read (it is listed), 1 if nothing could be imported.
    """
    from broker.importers.nsqd import ImportRefusedError, importing

    config = _config(file, data)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        with narrowed(), importing(folder, Path(config.server.data), config) as make, runner:
            outcome = runner.run(_run_nsqd(make, quiet))
    except ImportRefusedError as error:
        _refuse("import-nsqd", error)
    found = f"{outcome.topics} topics, {outcome.messages} messages imported"
    _report(outcome, folder, [found], "an nsqd")
    _exit(outcome)


async def _run_nsqd(make: Callable[[], nsqd.Import], quiet: bool) -> nsqd.Outcome:
    work = make()
    with _progress(work, quiet):
        return await work.run()


# --- NATS Streaming


@click.command("import-stan")
@click.argument("folder", metavar="DIR")
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file.")
@click.option(
    "--data", metavar="DIR", help="Data folder to import into.  [default: that of `serve`]"
)
@click.option(
    "--channel",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Import only matching channels; * is one token, a final > one or more. Repeatable.",
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
    """Import DIR, the file store of a stopped NATS Streaming server. Nothing in it is changed.

    An interrupted import continues when you run it again. The exit code is 0 if everything was
    imported, 3 if something could not be read (it is listed), 1 if nothing could be imported.
    """
    from broker.importers.nsqd import ImportRefusedError
    from broker.importers.stan import importing

    if _SQL.match(folder):
        _refuse("import-stan", f"{folder}: SQL stores cannot be imported, only file stores")
    config = _config(file, data)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    logs_folder = Path(config.server.data)
    try:
        with (
            narrowed(),
            importing(Path(folder), logs_folder, config, patterns, dry=dry_run) as make,
            runner,
        ):
            outcome = runner.run(_run_stan(make, dry_run, quiet))
    except ImportRefusedError as error:
        _refuse("import-stan", error)
    found = (
        f"{len(outcome.channels)} channels, {outcome.messages} messages,"
        f" {outcome.clients} clients {'found' if dry_run else 'imported'}"
    )
    _report(outcome, folder, [*outcome.channels, found])
    if not dry_run:
        _advise(outcome, config)
    _exit(outcome)


async def _run_stan(make: Callable[[], stan.Import], dry_run: bool, quiet: bool) -> stan.Outcome:
    work = make()
    with _progress(work, quiet):
        return work.inspect() if dry_run else await work.run()


def _advise(outcome: stan.Outcome, config: Config) -> None:
    """Print the settings that serve the imported data."""
    if config.stan.cluster_id != outcome.cluster_id:
        click.echo(f'start with stan.cluster_id = "{outcome.cluster_id}"')
    if config.stan.store == "memory":
        click.echo('start with stan.store = "file"')


# --- JetStream


@click.command("import-jetstream")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file.")
@click.option(
    "--data", metavar="DIR", help="Data folder to import into.  [default: that of `serve`]"
)
@click.option(
    "--account", "accounts", metavar="NAME", multiple=True, help="Import only these. Repeatable."
)
@click.option(
    "--key-file",
    metavar="FILE",
    type=click.File(),
    help="File with the encryption key of the server, `key` in its configuration; - is stdin.",
)
@click.option("--no-verify", is_flag=True, help="Do not verify the checksum of each message.")
@click.option("--dry-run", is_flag=True, help="Read everything, change nothing.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def import_jetstream(
    folder: Path,
    file: Path | None,
    data: str | None,
    accounts: tuple[str, ...],
    key_file: TextIO | None,
    no_verify: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Import DIR, the store_dir of a stopped nats-server with JetStream. Nothing in it is changed.

    Streams keep their messages with sequences, times and headers, consumers their places. An
    interrupted import continues when you run it again. The exit code is 0 if everything was
    imported, 3 if something could not be read (it is listed), 1 if nothing could be imported.
    """
    from broker.importers.jetstream.importer import Options, importing
    from broker.importers.nsqd import ImportRefusedError

    config = _config(file, data)
    key = key_file.read().strip() if key_file else ""
    options = Options(key, accounts, verify=not no_verify)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    target = Path(config.server.data)
    try:
        with (
            narrowed(),
            importing(folder, target, config, options, dry=dry_run) as make,
            runner,
        ):
            outcome = runner.run(_run_jetstream(make, dry_run, quiet))
    except ImportRefusedError as error:
        _refuse("import-jetstream", error)
    found = (
        f"{len(outcome.streams)} streams, {outcome.messages} messages"
        f" {'found' if dry_run else 'imported'}"
    )
    _report(outcome, folder, [*outcome.streams, found])
    _exit(outcome)


async def _run_jetstream(
    make: Callable[[], jetstream.Import], dry_run: bool, quiet: bool
) -> jetstream.Outcome:
    work = make()
    with _progress(work, quiet):
        return work.inspect() if dry_run else await work.run()


# --- channels of NATS Streaming as streams


@click.command("adopt-channels")
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--data", metavar="DIR", help="Data folder.  [default: that of `serve`]")
@click.option(
    "--channel",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Only matching channels; * is one token, a final > one or more. Repeatable.",
)
@click.option(
    "--account",
    default="",
    metavar="NAME",
    help="Account of the streams.  [default: that of NATS Streaming]",
)
@click.option("--stream", default="", metavar="NAME", help="Name of the stream, for one channel.")
@click.option("--remove", is_flag=True, help="Remove each channel when its stream is complete.")
@click.option("--dry-run", is_flag=True, help="Read everything, make nothing.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def adopt_channels(
    file: Path | None,
    data: str | None,
    patterns: tuple[str, ...],
    account: str,
    stream: str,
    remove: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Make JetStream streams of the NATS Streaming channels of a stopped broker.

    Messages keep their sequence numbers, times and headers. Each durable subscription or durable
    queue group becomes a durable pull consumer that goes on where it is. The channels stay unless
    --remove is given. The exit code is 0 if everything was adopted, 3 if something was not (it is
    listed), 1 if nothing could be.
    """
    from broker.importers.channels import Options, adopting
    from broker.importers.nsqd import ImportRefusedError

    config = _config(file, data)
    options = Options(account, patterns, stream, remove)
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        with narrowed(), adopting(Path(config.server.data), config, options) as work, runner:
            outcome = runner.run(_run_adoption(work, dry_run, quiet))
    except ImportRefusedError as error:
        _refuse("adopt-channels", error)
    for line in outcome.remarks:
        click.echo(line, err=True)
    for each in outcome.channels:
        click.echo(str(each))
    done = "found" if dry_run else "adopted"
    click.echo(f"{len(outcome.channels)} channels, {outcome.messages} messages {done}")
    sys.exit(limits.EXIT_PARTLY if outcome.remarks else limits.EXIT_OK)


async def _run_adoption(work: channels.Adoption, dry_run: bool, quiet: bool) -> channels.Outcome:
    if quiet:
        return await work.run(dry=dry_run)
    with click.progressbar(length=0, label="reading", file=sys.stderr) as bar:

        def begin(total: int) -> None:
            bar.length = total

        work.begin, work.advance = begin, bar.update
        return await work.run(dry=dry_run)
