"""`twinwire nsqd` and `twinwire nsqlookupd`: the originals' flags, files, log lines, exit codes."""

from __future__ import annotations

import asyncio
import logging
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import uvloop

from broker import limits, logs
from broker.cli.goflags import Flag, FlagError, FlagSet
from broker.cli.nsq_flags import (
    NSQD,
    NSQLOOKUPD,
    WITHOUT_EFFECT,
    lookup_settings,
    nsq_settings,
)
from broker.cli.serve import Words, raise_open_files_limit, run
from broker.config import Config, ConfigError, from_values, read_document

if TYPE_CHECKING:
    from broker.server import Server

log = logging.getLogger("broker.nsqd")

_LEVELS = {"warn": "warning", "fatal": "critical"}
_WORDS = Words("NSQ: closing topics", "NSQ: bye", "failed to instantiate nsqd - %s")
Settings = Callable[[dict[str, Any]], dict[tuple[str, str], tuple[str, object]]]


def version(program: str) -> str:
    """One line, as `-version` and the log have it."""
    return f"{program} v{limits.NSQ_VERSION} (built w/python{platform.python_version()})"


def fatal(prefix: str, text: str) -> NoReturn:
    """A start that failed."""
    logs.setup("info", "nsq", utc=False, prefix=prefix)
    logging.getLogger("broker").critical("%s", text)
    sys.exit(limits.EXIT_START_FAILED)


def read_file(program: str, path: str) -> Mapping[str, Any]:
    """The TOML file of -config."""
    try:
        return read_document(Path(path))
    except (OSError, ValueError) as problem:
        fatal(f"[{program}] ", f"failed to load config file {path} - {problem}")


def configure(
    program: str, flags: Sequence[Flag], settings: Settings, arguments: Sequence[str]
) -> tuple[Config, dict[str, Any], dict[str, Any]]:
    """From a command line to (configuration, what was given, all values); ends the process else."""
    flag_set = FlagSet(program, flags)
    given = flag_set.parse_or_exit(arguments)
    if given.get("version"):
        click.echo(version(program))
        sys.exit(0)
    file = read_file(program, given["config"]) if given.get("config") else {}
    try:
        values = flag_set.resolve(given, file)
        config = from_values(settings(values))
    except (FlagError, ConfigError) as problem:
        fatal(f"[{program}] ", f"failed to instantiate {program} - {problem}")
    logs.setup(
        _LEVELS.get(values["log-level"], values["log-level"]),
        "nsq",
        utc=False,
        prefix=values["log-prefix"],
    )
    named = {**{f.name: f.name for f in flags if f.file_key in file}, **given}
    return config, named, values


@click.command("nsqd", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nsqd(arguments: tuple[str, ...]) -> None:
    """Run the broker as nsqd: its flags, its defaults, its log lines. NATS is off."""
    config, given, values = configure("nsqd", NSQD, nsq_settings, arguments)
    log.info("%s", version("nsqd"))
    if idle := sorted(WITHOUT_EFFECT & set(given)):
        log.warning("accepted without effect: %s", ", ".join(f"-{name}" for name in idle))
    if (Path(config.server.data) / "nsqd.dat").exists():
        log.warning("%s holds messages of nsqd: twinwire import-nsqd", config.server.data)

    def announce(server: Server) -> None:
        if values["node-id"] >= 0:
            log.info("ID: %d", values["node-id"])
        for name, what in (("nsq", "TCP"), ("nsq_https", "HTTPS"), ("nsq_http", "HTTP")):
            if name in server.ports:
                log.info("%s: listening on %s:%d", what, *server.ports[name])

    raise_open_files_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(run(config, announce, _WORDS))
    sys.exit(code)


@click.command(
    "nsqlookupd", context_settings={"ignore_unknown_options": True, "help_option_names": []}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nsqlookupd(arguments: tuple[str, ...]) -> None:
    """Run the lookup service alone, as nsqlookupd: its flags, its defaults, its log lines."""
    config, _, _ = configure("nsqlookupd", NSQLOOKUPD, lookup_settings, arguments)
    logging.getLogger("broker.nsqlookupd").info("%s", version("nsqlookupd"))
    raise_open_files_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_lookup(config)))


async def _lookup(config: Config) -> int:
    from broker.server_lookup import lookup_server

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server = lookup_server(config)
    try:
        await server.start()
    except OSError as problem:
        log.critical("failed to instantiate nsqlookupd - %s", problem)
        return limits.EXIT_START_FAILED
    await stopping.wait()
    await server.stop()
    return limits.EXIT_OK
