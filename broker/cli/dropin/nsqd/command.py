"""`twinwire nsqd` and `twinwire nsqlookupd`: the originals' flags, log lines and exit codes."""

from __future__ import annotations

import errno
import fcntl
import gc
import logging
import os
import platform
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from broker.base import logs
from broker.base.gotext import system_text
from broker.cli import notify, signals
from broker.cli.dropin import errors, goflags
from broker.cli.dropin.nsqd import config as translate
from broker.cli.dropin.nsqd import flags as nsqd_flags
from broker.cli.serve import (
    debounced,
    lasting_memory,
    on_signal,
    raise_open_files_limit,
    reload_at_hangup,
    restrict_umask,
    until_ended,
    until_stopped,
)
from broker.config.check import opened
from broker.net import activation, sockets
from broker.net import limits as net_limits
from broker.protocols.nsq import limits as nsq_limits
from broker.server import limits as server_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from broker.config.config import Config

log = logging.getLogger("broker.dropin")

Result = TypeVar("Result")

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_NAMES = {logging.CRITICAL: "FATAL"}


class Startable(Protocol):
    """The interface of a server that this module runs."""

    ports: dict[str, tuple[str, int]]

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def reload(self) -> bool: ...


class GoFormatter(logging.Formatter):
    """Formats records as: PREFIX2026/11/20 10:00:00.000000 INFO: message key=value."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """The message with its fields, as in Twinwire's text log after the logger's name."""
        moment = datetime.fromtimestamp(record.created).astimezone()
        level = _NAMES.get(record.levelno, record.levelname)
        text = logs.message_of(record)
        return f"{self.prefix}{moment:%Y/%m/%d %H:%M:%S.%f} {level}: {text}"


def log_like(prefix: str, level: str) -> None:
    """Send all logs to standard error in the originals' form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(GoFormatter(prefix))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    logging.raiseExceptions = False  # an unwritable log must not print tracebacks


def version_line(program: str) -> str:
    """The text of -version, which is also the first line of the log."""
    built = f"python{platform.python_version()}"
    return f"{program} v{nsq_limits.NSQ_VERSION} (built w/{built})"


def die(program: str, text: str) -> NoReturn:
    """Log one FATAL line and exit with code 1."""
    log_like(f"[{program}] ", "fatal")
    log.critical("%s", text)
    sys.exit(server_limits.EXIT_START_FAILED)


def read(
    program: str, flags: Mapping[str, goflags.Flag], args: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The value of each flag, the given flags, and log lines about unknown keys of the file. Exits
    like the original."""
    try:
        found = goflags.parse(flags, args)
    except goflags.HelpWanted:
        print(goflags.usage(program, flags), end="", file=sys.stderr, flush=True)
        sys.exit(server_limits.EXIT_OK)
    except goflags.FlagError as error:
        print(f"{error}\n{goflags.usage(program, flags)}", end="", file=sys.stderr, flush=True)
        sys.exit(server_limits.EXIT_BAD_CONFIG)
    if found.given.get("version"):
        print(version_line(program), flush=True)
        sys.exit(server_limits.EXIT_OK)
    try:
        path = found.given.get("config")
        file = read_file(path) if path else {}
        values = goflags.resolve(flags, found.given, file)
    except goflags.FlagError as error:
        die(program, str(error))
    given = translate.named_in_file(flags, file) | found.given
    return values, given, list(translate.unknown_keys(flags, file, path or ""))


def read_file(path: str) -> dict[str, object]:
    """The keys of a configuration file. FlagError."""
    with signals.Stoppable():
        return translate.read_file(path)


def nsqd(args: Sequence[str]) -> int:
    """Run `twinwire nsqd`; return the exit code."""
    restrict_umask()
    flags = nsqd_flags.nsqd()
    values, given, unknown = read("nsqd", flags, args)
    log_like(values["log-prefix"], values["log-level"])
    raise_open_files_limit()
    try:
        translate.check(values)
        config = translate.to_config(flags, values)
        folder = lock_folder(config.server.data)
    except (translate.StartError, OSError) as error:
        die("nsqd", errors.DROPIN_START.format("nsqd", error))
    log.info("%s", version_line("nsqd"))
    log.info("ID: %d", values["node-id"])
    for line in translate.remarks(flags, given):
        log.info("%s", line)
    for line in unknown:
        log.warning("%s", line)
    data = Path(config.server.data)
    adopt("nsqd", opened(config))
    if was_used(data):
        if not take_over(data, config):
            return server_limits.EXIT_OK
    elif not config.reads_files:  # which may still be invalid
        sockets.listen_early(address for _, address in opened(config))

    def server() -> Startable:
        from broker.server.server import Server

        return Server(config)

    addresses = (values["tcp-address"], values["http-address"])
    code = run("nsqd", server, addresses)
    os.close(folder)
    return code


def nsqlookupd(args: Sequence[str]) -> int:
    """Run `twinwire nsqlookupd`; return the exit code."""
    flags = nsqd_flags.nsqlookupd()
    values, _, unknown = read("nsqlookupd", flags, args)
    log_like(values["log-prefix"], values["log-level"])
    raise_open_files_limit()
    try:
        config = translate.to_config(flags, values)
        server = lookup_server(config)
    except translate.StartError as error:
        die("nsqlookupd", errors.DROPIN_START.format("nsqlookupd", error))
    log.info("%s", version_line("nsqlookupd"))
    for line in unknown:
        log.warning("%s", line)
    wanted = {
        "nsqlookupd.listen": config.nsqlookupd.listen,
        "nsqlookupd.http": config.nsqlookupd.http,
    }
    listeners = [(key, address) for key, address in wanted.items() if address is not None]
    adopt("nsqlookupd", listeners)
    sockets.listen_early(address for _, address in listeners)
    addresses = (values["tcp-address"], values["http-address"])
    return run("nsqlookupd", server, addresses)


def adopt(program: str, listeners: Iterable[tuple[str, tuple[str, int]]]) -> None:
    """Use the sockets that a service manager has passed; exits if one cannot be used."""
    try:
        activation.adopt(listeners)
    except activation.ActivationError as error:
        die(program, errors.DROPIN_START.format(program, error))


def lookup_server(config: Config) -> Callable[[], Startable]:
    """The factory of the lookup server. StartError if the configuration has no such section."""
    section = getattr(config, "nsqlookupd", None)
    if section is None:
        raise translate.StartError("the lookup service is not part of this version")

    def make() -> Startable:
        import importlib

        module = importlib.import_module("broker.protocols.nsq.lookup.server")
        server: Startable = module.LookupServer(section, http=config.http)
        return server

    return make


def lock_folder(data: str) -> int:
    """Lock the data folder itself, as the original does, so that the two never share one.
    StartError."""
    try:
        fd = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        reason = system_text("open", data, error)
        raise translate.StartError(errors.NSQD_NO_LOCK.format(reason)) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno != errno.EWOULDBLOCK:
            raise
        raise translate.StartError(errors.NSQD_LOCKED.format(data)) from None
    return fd


def was_used(data: Path) -> bool:
    """Whether an original has left data in the folder."""
    from broker.importers.diskqueue import holds_messages

    return holds_messages(data)


def take_over(data: Path, config: Config) -> bool:
    """Import the data that an original left in the folder, once. False: a signal interrupted it,
    and the next start continues."""
    import asyncio

    import uvloop

    from broker.importers.nsqd import ImportRefusedError, importing

    gc.enable()
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        with importing(data, data, config, held=True) as make, runner:
            outcome = runner.run(_until_signal(make().run()))
    except ImportRefusedError as error:
        die("nsqd", f"failed to load metadata - {error}")
    if outcome is None:
        log.info("stopped by a signal: the next start goes on with the import")
        return False
    if outcome.changed:
        log.warning(
            "an nsqd has used this folder since its import: newer data of that nsqd is not imported"
        )
    if outcome.already:
        return True
    for line in outcome.remarks:
        log.error("not imported: %s", line)
    log.info("imported from nsqd: %d topics, %d messages", outcome.topics, outcome.messages)
    return True


async def _until_signal(work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of `work`. None: SIGTERM or SIGINT has cancelled it."""
    import asyncio

    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    for number in signals.STOPS:
        loop.add_signal_handler(number, stop)
    signals.let_through(*signals.STOPS)
    try:
        result = await task
    except asyncio.CancelledError:
        return None
    finally:
        signals.hold()  # until the server runs
    # A signal may have come when `work` had ended: it takes two turns of the loop to handle it.
    for _ in range(2):
        await asyncio.sleep(0)
    return None if stopped else result


def run(program: str, make: Callable[[], Startable], addresses: tuple[str, str]) -> int:
    """Run a server until a signal; return the exit code."""
    return until_ended(_run(program, make, addresses))


async def _run(program: str, make: Callable[[], Startable], addresses: tuple[str, str]) -> int:
    import asyncio

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    stop = debounced(on_signal)
    for number in signals.STOPS:
        loop.add_signal_handler(number, stop, number, stopping)
    signals.let_through(*signals.STOPS, *signals.OTHERS)
    server = make()
    try:
        with lasting_memory():
            await server.start()
        sockets.close_early()
    except Exception as error:  # any error: the operator gets one line
        reason = translate.listen_failure(error, *addresses)
        log.critical(
            "%s",
            errors.DROPIN_START.format(program, reason),
            exc_info=log.isEnabledFor(logging.DEBUG),
        )
        return server_limits.EXIT_START_FAILED
    names = listeners(server.ports)
    for name, where in names:
        log.info("%s: listening on %s", name, where)
    bound = server.ports.items()
    notify.ready(", ".join(f"{name} {address_text(*at[:2])}" for name, at in bound))
    reload_at_hangup(server)
    await until_stopped(stopping, log)
    notify.stopping()
    for name, where in names:
        log.info("%s: closing %s", name, where)
    try:
        await server.stop()
    except Exception:
        log.exception("%s", "not stopped cleanly")
        return server_limits.EXIT_STOP_FAILED
    log.info("%s: bye", "NSQ" if program == "nsqd" else program)
    return server_limits.EXIT_OK


def listeners(ports: Mapping[str, tuple[str, int]]) -> list[tuple[str, str]]:
    """TCP, HTTP and HTTPS with their addresses, in the original's order."""
    names = (("TCP", "nsq"), ("HTTP", "nsq_http"), ("HTTPS", "nsq_https"))
    return [(label, address_text(*ports[name][:2])) for label, name in names if name in ports]


def address_text(host: str, port: int) -> str:
    """The address of a listener as Go writes it: every interface is [::]."""
    if port == net_limits.UNIX_SOCKET_PORT:
        return host
    shown = "::" if host in ("", "0.0.0.0") else host  # noqa: S104 (shown, not bound)
    return f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
