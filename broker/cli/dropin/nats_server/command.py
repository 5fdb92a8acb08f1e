"""`twinwire nats-server`: the original's flags, configuration files, log lines and exit codes."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.base.gotext import go_quote, system_text
from broker.base.redact import redacted
from broker.cli import signals
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server import flags
from broker.cli.dropin.nats_server.flags import PROGRAM
from broker.net import sockets
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats.conf.text import ConfErrors, ConfNote
from broker.protocols.nats.settings import ORIGINAL, Settings
from broker.server import limits as server_limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.base.service import Handler
    from broker.cli.dropin.nats_server.run import Server
    from broker.protocols.nats.server import NatsServer

log = logging.getLogger("broker.nats")


def main(args: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    try:
        given, words = flags.read(args)
    except FlagError as error:
        print(redacted(str(error)), file=sys.stderr, flush=True)
        print(flags.usage(), flush=True)
        return server_limits.EXIT_OK  # as the original does
    try:
        text = asked_for(given, words)
        if text is not None:
            print(text, flush=True)
            return server_limits.EXIT_OK
        flags.check(given)
        if given.get("signal"):
            from broker.cli.dropin.nats_server import process

            process.send(given["signal"])
            return server_limits.EXIT_OK
        with signals.Stoppable() if given.get("config") else contextlib.nullcontext():
            settings, warnings = first_settings(given)
    except (FlagError, ConfErrors) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr, flush=True)
        return server_limits.EXIT_START_FAILED
    if given.get("check"):
        for text in warnings:
            print(text, file=sys.stderr)
        line = errors.CHECKED.format(PROGRAM, given["config"], settings.digest)
        print(line, file=sys.stderr, flush=True)
        return server_limits.EXIT_OK
    return serve(settings, given, warnings)


def asked_for(given: Mapping[str, Any], words: Sequence[str]) -> str | None:
    """The text that a flag or word asks for instead of a server. FlagError: an unknown word."""
    version = f"{PROGRAM}: v{nats_limits.NATS_VERSION}"
    word = words[0].lower() if words else ""
    if given.get("version"):
        return version
    if given.get("help"):
        return flags.usage()
    if given.get("help_tls"):
        return flags.HELP_TLS
    if word == "version":
        return version
    if word == "help":
        return flags.usage()
    if word:
        raise FlagError(errors.UNKNOWN_WORD.format(go_quote(words[0])))
    return None


def first_settings(given: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The settings of the file and the flags, and warnings. FlagError; with -t also for warnings
    that are more than notes."""
    if not given.get("config"):
        if given.get("check"):
            raise FlagError(errors.CHECK_WHAT)
        return checked(flags.apply(ORIGINAL, given)), []
    settings, warnings = read_file(given["config"])
    if not given.get("check"):
        settings = checked(flags.apply(settings, given))
    elif not all(harmless for _, harmless in warnings):
        raise FlagError("\n".join(text for text, harmless in warnings if not harmless))
    return settings, [text for text, _ in warnings]


def read_file(path: str) -> tuple[Settings, list[tuple[str, bool]]]:
    """The settings of a file, its warnings, and whether each is only a note. FlagError,
    ConfErrors."""
    from broker.protocols.nats.conf import reader

    readable(path)
    settings, warnings = reader.read_file(Path(path), os.environ)
    return settings, [(str(one), isinstance(one, ConfNote)) for one in warnings]


def readable(path: str) -> None:
    """FlagError unless the file can be read."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise FlagError(system_text("open", path, error)) from None


def checked(settings: Settings) -> Settings:
    """The TLS settings, with a checked certificate. FlagError."""
    tls = settings.tls
    if tls is not None:
        from broker.net.openssl import TlsError
        from broker.protocols.nats.tls import server_context

        try:
            server_context(tls)
        except TlsError as error:
            raise FlagError(errors.TLS_FILES.format(error)) from None
    return settings


def listen_early(settings: Settings) -> None:
    """Listen before the server is imported, unless its settings may still be invalid."""
    unchecked = (
        *(settings.tls, settings.https, settings.websocket, settings.leafnodes, settings.resolver),
        *(settings.authorization.callout, settings.client_advertise, settings.pid_file),
        *(settings.system_account, settings.accounts),
    )
    if not any(unchecked):
        pages = [] if settings.http is None else [settings.http]
        sockets.listen_early([*pages, settings.address])


def serve(settings: Settings, given: Mapping[str, Any], warnings: Sequence[str] = ()) -> int:
    """Run until a signal; the exit code. `warnings`: of the configuration file, to be logged."""
    from broker.cli.dropin.nats_server import process
    from broker.cli.dropin.nats_server.log import Log, LogError, stamp_now
    from broker.cli.serve import raise_open_files_limit, restrict_umask, until_ended

    server_log = Log(PROGRAM)
    try:
        server_log.use(settings)
    except LogError as error:
        print(f"{stamp_now()} {error}", file=sys.stderr, flush=True)
        return server_limits.EXIT_START_FAILED
    process.take_name()
    restrict_umask()
    raise_open_files_limit()
    listen_early(settings)
    from broker.cli.dropin.nats_server.run import Run

    def again() -> Settings:
        found, warnings = read_file(given["config"])
        for text, _ in warnings:
            log.warning("%s", text)
        return checked(flags.apply(found, given))

    options: dict[str, Any] = {
        "file": given.get("config", ""),
        "read_again": again,
        "program": PROGRAM,
        "remarks": (*warnings, *flags.remarks(given)),
    }
    if settings.jetstream is not None and settings.jetstream.enabled:
        from broker.cli.dropin.nats_server.jetstream import JetStreamRun

        run: Run = JetStreamRun(settings, server_log, _more_pages, **options)
    else:
        run = Run(settings, server_log, make_server, **options)
    code = until_ended(run.run())
    server_log.close()
    return code


def _more_pages(server: NatsServer) -> Mapping[str, Handler]:
    """Pages that nats-server leaves to an exporter."""
    from broker.protocols.nats.monitoring.metrics import nats_metrics
    from broker.server.exposition import metrics_page

    return {"/metrics": metrics_page(lambda: [nats_metrics(server.pages)])}


def make_server(settings: Settings) -> Server:
    """Create the server, on the running loop."""
    from broker.cli.dropin.environment import from_environment
    from broker.net.listener import Runtime
    from broker.protocols.nats.server import NatsServer

    given = from_environment()
    server = NatsServer(settings, Runtime(given.server.busy_poll_ns))
    server.monitor.http = given.http
    server.monitor.more = lambda: _more_pages(server)
    return server
