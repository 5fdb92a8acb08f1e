"""`twinwire nats-streaming-server`: the original's flags, files, log lines and exit codes."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
import uvloop

from broker.base import logs
from broker.base.gotext import go_quote
from broker.base.metrics import Place
from broker.base.redact import redacted
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.http_environment import http_config
from broker.cli.dropin.nats_server import flags as nats_flags
from broker.cli.dropin.nats_server import process
from broker.cli.dropin.nats_server.command import checked, readable
from broker.cli.dropin.nats_server.log import STREAMING, Log, LogError, stamp_now
from broker.cli.dropin.nats_server.run import Run
from broker.cli.dropin.nats_streaming import flags
from broker.cli.dropin.nats_streaming.flags import PROGRAM
from broker.cli.dropin.nats_streaming.settings import (
    Files,
    account_of,
    check,
    config_of,
    limit_lines,
    problem_of,
    read_files,
    settings_of,
)
from broker.cli.dropin.nsqd.command import Passed
from broker.cli.serve import keep_from_others, lasting_memory, raise_open_files_limit
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.conf.text import ConfErrors
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.service import NatsService
from broker.protocols.nats.settings import ORIGINAL, Settings
from broker.protocols.stan import limits as stan_limits
from broker.protocols.stan.service import StanService
from broker.server import limits as server_limits
from broker.server.metrics import MetricsService
from broker.server.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from broker.base.service import Service
    from broker.protocols.host import Host
    from broker.protocols.stan.config import StanConfig

log = logging.getLogger(STREAMING)
VERSION = f"{PROGRAM} version {stan_limits.STAN_VERSION}, nats-server: v{nats_limits.NATS_VERSION}"


@click.command(PROGRAM, cls=Passed, add_help_option=False)
def nats_streaming_server(args: tuple[str, ...]) -> None:
    """Replace nats-streaming-server. It accepts its flags; -h lists them."""
    sys.exit(main(args))


class Asked(NamedTuple):
    """The result of flags and files."""

    settings: Settings
    stan: StanConfig
    folder: Path | None
    file: str  # of the NATS server
    problem: str  # the reason why it cannot start, reported at the start
    remarks: tuple[str, ...]
    debug: bool
    trace: bool


def main(args: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    try:
        own, nats, words = flags.read(args)
    except FlagError as error:
        click.echo(redacted(str(error)), err=True)
        click.echo(flags.usage())
        return server_limits.EXIT_OK  # as the original does
    try:
        if (text := asked_for(nats, words)) is not None:
            click.echo(text)
            return server_limits.EXIT_OK
        nats_flags.check(nats)
        if nats.get("signal"):
            process.send(nats["signal"], PROGRAM)
            return server_limits.EXIT_OK
        if nats.get("check") and not nats.get("config"):
            raise FlagError(errors.CHECK_WHAT)
        asked = everything(flags.sizes(own), nats)
    except (FlagError, ConfErrors) as error:
        click.echo(redacted(str(error)), err=True)
        return server_limits.EXIT_START_FAILED
    if nats.get("check"):
        click.echo(errors.CHECKED.format(PROGRAM, nats["config"]), err=True)
        return server_limits.EXIT_OK
    return serve(asked, own, nats)


def asked_for(nats: Mapping[str, Any], words: Sequence[str]) -> str | None:
    """The text that a flag or word requests instead of a server. FlagError for an unknown word."""
    word = words[0].lower() if words else ""
    if nats.get("version"):
        return VERSION
    if nats.get("help"):
        return flags.usage()
    if nats.get("help_tls"):
        return nats_flags.HELP_TLS
    if word not in ("", "version", "help"):
        raise FlagError(errors.UNKNOWN_WORD.format(go_quote(words[0])))
    return {"version": VERSION, "help": flags.usage()}.get(word)


def read(own: Mapping[str, Any], nats: Mapping[str, Any]) -> Files:
    """The settings of the files, overridden by the NATS server's flags. FlagError, ConfErrors."""
    paths = nats.get("config", ""), own.get("stan_config", "")
    for path in filter(None, paths):
        readable(path)
    files = read_files(*paths, ORIGINAL, os.environ)
    files.settings = checked(nats_flags.apply(files.settings, nats))
    return files


def everything(own: Mapping[str, Any], nats: Mapping[str, Any]) -> Asked:
    """Combine flags and files; flags override. FlagError, ConfErrors."""
    files = read(own, nats)
    for text, _ in files.warnings:
        click.echo(text, err=True)
    both = files.own | dict(own)
    check(both)
    if "SDV" in own:
        both |= {"stan_debug": own["SDV"], "stan_trace": own["SDV"]}
    account = account_of(files.settings, both)
    problem = problem_of(both, files)
    stan = settings_of(both, files, account or "")
    remarks = list(nats_flags.remarks(nats))
    if idle := [*own.get("", ()), *files.idle]:
        remarks.append(errors.STAN_NO_EFFECT.format(", ".join(idle)))
    return Asked(
        settings=files.settings,
        stan=stan,
        folder=Path(both["dir"]) if stan.store == "file" and both.get("dir") else None,
        file=nats.get("config", "") or own.get("stan_config", ""),
        problem=problem,
        remarks=tuple(remarks),
        debug=both.get("stan_debug", False),
        trace=both.get("stan_trace", False),
    )


def serve(asked: Asked, own: Mapping[str, Any], nats: Mapping[str, Any]) -> int:
    """Run until a signal; return the exit code."""
    place = Log(PROGRAM)
    try:
        place.use(asked.settings)
    except LogError as error:
        click.echo(f"{stamp_now()} {error}", err=True)
        return server_limits.EXIT_START_FAILED
    level = logging.DEBUG if asked.debug else logging.INFO
    log.setLevel(logs.TRACE if asked.trace else level)
    process.take_name(PROGRAM)
    keep_from_others()
    raise_open_files_limit()

    def again() -> Settings:
        files = read(own, nats)
        for text, _ in files.warnings:
            log.warning("%s", text)
        return files.settings

    run = StreamingRun(asked, place, again)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(run.run())
    place.close()
    return code


class StreamingRun(Run):
    """A run of a NATS server with the streaming service. As in the original, it listens before it
    recovers the store. `server` is the NATS server, `broker` runs both."""

    terminated = server_limits.EXIT_SIGNAL_BASE + signal.SIGTERM
    server: NatsServer
    broker: Server
    stan: StanService

    def __init__(self, asked: Asked, place: Log, again: Any) -> None:
        self.asked = asked
        super().__init__(
            asked.settings,
            place,
            self._make,
            file=asked.file,
            read_again=again,
            program=PROGRAM,
            remarks=asked.remarks,
        )

    def _make(self, settings: Settings) -> NatsServer:
        def nats(host: Host) -> Service:
            return NatsService(host, NatsServer(settings, host.runtime, host.router))

        def metrics(host: Host) -> Service:
            return MetricsService(host, Place.EXPORTED)

        folder = self.asked.folder
        self.broker = Server(
            config_of(self.asked.stan, folder, http_config()),
            (nats, lambda host: StanService(host, alone=True), metrics),
            in_memory=folder is None,
            log=log,
        )
        self.stan = cast("StanService", self.broker.service(StanService))
        server = cast("NatsService", self.broker.service(NatsService)).server
        assert server is not None
        server.monitor.more = self.broker.pages
        return server

    def _first_lines(self) -> Iterator[str]:
        cluster = self.asked.stan.cluster_id
        yield f"STREAM: Starting {PROGRAM}[{cluster}] version {stan_limits.STAN_VERSION}"
        yield f"STREAM: ServerID: {self.stan.server_id}"
        yield f"STREAM: Python version: {platform.python_version()}"
        if not self.asked.problem:
            yield from super()._first_lines()

    def early_problem(self) -> str:
        """The error that is found only when the server starts."""
        if self.asked.problem:
            return errors.STAN_START.format(self.asked.problem)
        return super().early_problem()

    async def when_ready(self) -> str:
        """Start the service; return the reason if it cannot start."""
        if not self.asked.stan.account:
            return errors.STAN_START.format(errors.STAN_LOGIN)
        log.info("Recovering the state...")
        try:
            with lasting_memory():
                await self.broker.open()
        except Exception as error:  # any error: the operator gets one line
            log.debug("not started", exc_info=error)
            return errors.STAN_START.format(error)
        assert self.stan.streaming is not None
        found = len(self.stan.streaming.channels)
        log.info("%s", f"Recovered {found} channel(s)" if found else "No recovered state")
        log.info("Message store is %s", self.asked.stan.store.upper())
        if self.asked.folder is not None:
            log.info("Store location: %s", self.asked.folder)
        for line in limit_lines(self.asked.stan):
            log.info("%s", line)
        log.info("Streaming Server is ready")
        return ""

    async def stop_server(self) -> None:
        """Stop the service, if it was started, then the NATS server."""
        await self.broker.stop()

    async def _end(self) -> int:
        log.info("Shutting down.")
        return await super()._end()
