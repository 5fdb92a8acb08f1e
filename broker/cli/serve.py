"""`twinwire serve`: reads the configuration and runs the server until a signal."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from broker import __version__
from broker.base import logs
from broker.base.lockfile import DataFolderError, DataLockedError
from broker.base.settings import Address
from broker.base.units import SECOND
from broker.base.values import NamedTuple
from broker.cli import notify, signals
from broker.config.check import opened
from broker.config.config import Config
from broker.config.load import FLAGS, ConfigError, check_files, load_with_origins
from broker.net import activation, sockets, umask
from broker.net import limits as net_limits
from broker.runtime import memory
from broker.server import limits

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from broker.config.load import Given
    from broker.server.server import Server

log = logging.getLogger("broker.serve")


_FINE, _FEW, _NONE = range(3)
_FULL: Final = {errno.EMFILE, errno.ENFILE}


class Option(NamedTuple):
    """One flag of `twinwire serve`."""

    flag: str
    metavar: str
    help: str
    short: tuple[str, ...] = ()


OPTIONS: Final = (
    Option("--config", "PATH", "TOML file.", ("-c",)),
    Option("--data", "DIR", "Data folder."),
    Option("--nats", "HOST:PORT", "Listener for NATS clients."),
    Option("--monitor", "HOST:PORT", "Listener for monitoring: /healthz, /varz, /metrics."),
    Option("--nsq", "HOST:PORT", "Listener for NSQ clients."),
    Option("--nsq-http", "HOST:PORT", "Listener for NSQ over HTTP: /pub, /stats ..."),
    Option("--bulk", "HOST:PORT", "Listener of the bulk API, for pipelines."),
    Option("--console", "HOST:PORT", "Listener of the web console and its API."),
    Option("--log-level", "LEVEL", "debug, info, warning, error."),
    Option("--log-format", "FORMAT", "text or json."),
    Option(
        "--ports-file",
        "PATH",
        "When the broker is ready, write the bound addresses to this file, as JSON.",
    ),
)


def main(args: Sequence[str]) -> int | None:
    """Run the command. Returns the exit code; None: click reports an error or shows the help."""
    given = parse_flags(args)
    return None if given is None else start(given)


def parse_flags(args: Sequence[str]) -> dict[str, str] | None:
    """The value of each given flag. None: they are not all written in full with a value."""
    names = {name: one.flag for one in OPTIONS for name in (one.flag, *one.short)}
    given: dict[str, str] = {}
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in names or (equals and not name.startswith("--")):
            return None
        if not equals:
            value = next(words, "-")
        if value.startswith("-"):
            return None
        given[names[name]] = value
    return given


def start(
    given: Mapping[str, str], when_ready: Callable[[Mapping[str, str]], object] | None = None
) -> int:
    """Run the broker until SIGTERM or SIGINT.

    Without a file every key has its default: data in ./data, loopback, ports 4222, 8222, 4150,
    4151, 4171 and 8171. An empty address disables a listener; port 0 picks a free port.
    """
    # `when_ready` receives the bound addresses. The docstring is also the text of --help.
    flags = dict(given)
    file, ports = flags.pop("--config", None), flags.pop("--ports-file", None)
    try:
        with contextlib.nullcontext() if file is None else signals.Stoppable():
            path = None if file is None else Path(file)
            config, settings = load_with_origins(path, os.environ, flags)
        check_files(config, settings)
    except ConfigError as error:
        print(error, file=sys.stderr, flush=True)
        return limits.EXIT_BAD_CONFIG
    logs.setup(config.log.level, config.log.format, utc=config.log.utc)
    restrict_umask()
    raise_open_files_limit()
    ports_file = None if ports is None else Path(ports)
    if ports_file is not None:
        # Programs that wait for the file must not find an old one.
        ports_file.unlink(missing_ok=True)
    try:
        activation.adopt(opened(config))
    except activation.ActivationError as error:
        log.error("cannot start: %s", error)
        return limits.EXIT_START_FAILED
    if not config.reads_files:
        sockets.listen_early(address for _, address in opened(config))

    def announce(server: Server) -> None:
        ports = _announce(server, config, ports_file)
        if when_ready is not None:
            when_ready(ports)

    return until_ended(run(config, announce, settings))


def until_ended(coroutine: Coroutine[Any, Any, int]) -> int:
    """Run a server on its own loop. Returns the exit code."""
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(coroutine)
        finally:
            # Closing the loop removes the handler, and SIGHUP would end the process.
            signals.hold(*signals.RELOADS)


async def run(
    config: Config,
    announce: Callable[[Server], object],
    given: Given | None = None,
) -> int:
    """Start, log the addresses, wait for a signal, drain; return the exit code."""
    import asyncio

    with lasting_memory():
        from broker.server.server import Server

        server = Server(config, given=given)  # imports only the enabled services

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    stop = debounced(on_signal)
    for number in signals.STOPS:
        loop.add_signal_handler(number, stop, number, stopping)
    signals.let_through(*signals.STOPS, *signals.OTHERS)
    try:
        with lasting_memory():
            await server.start()
        sockets.close_early()
        if not stopping.is_set():
            announce(server)
    except (
        Exception
    ) as error:  # of any kind: the operator gets one line, and with debug the traceback
        wrong = wrong_files(error, config, given or {})
        problem = wrong or start_problem(error, config)
        log.error("cannot start: %s", problem, exc_info=log.isEnabledFor(logging.DEBUG))
        return limits.EXIT_BAD_CONFIG if wrong else limits.EXIT_START_FAILED
    reload_at_hangup(server)
    await until_stopped(stopping, log)
    notify.stopping()
    log.info("stopping")
    try:
        await server.stop()
    except Exception:
        log.exception("not stopped cleanly")
        return limits.EXIT_STOP_FAILED
    log.info("stopped")
    return limits.EXIT_OK


def wrong_files(error: Exception, config: Config, given: Given) -> str:
    """What is wrong in the files that the settings name, with its places, if that may be why a
    start has failed."""
    if isinstance(error, OSError | DataLockedError) or not given:
        return ""  # of the disk or a listener
    from broker.cli.check_config import mistakes

    return "; ".join(mistakes(config, given))


def start_problem(error: Exception, config: Config) -> str:
    """Why the start failed, with the settings to change. Lists all listeners that cannot be opened,
    not only the first."""
    if isinstance(error, DataFolderError | DataLockedError):
        return f"{error}; another folder is chosen by {_named('server.data')}"
    if not isinstance(error, sockets.ListenError):
        return str(error)
    sockets.close_early()
    found = []
    for key, address in opened(config):
        problem = error if address == error.listen else sockets.problem_of(*address)
        if problem is not None:
            found.append(f"{_named(key)}: {problem}")
    return "; ".join(found) or str(error)


def _named(key: str) -> str:
    """A setting with the flag that sets it."""
    flag = next((flag for flag, names in FLAGS.items() if ".".join(names) == key), "")
    return f"{key} ({flag})" if flag else key


def _announce(server: Server, config: Config, ports_file: Path | None) -> dict[str, str]:
    ports = {name: str(Address(*bound[:2])) for name, bound in server.ports.items()}
    if ports_file is not None:
        try:
            write_ports_file(ports_file, ports)
        except OSError as problem:  # clients can connect anyway
            log.error("the ports file cannot be written: %s", problem)
    extra = logs.fields(**ports, data=config.server.data, pid=os.getpid())
    log.info("twinwire %s ready", __version__, extra=extra)
    notify.ready(", ".join(f"{name} {address}" for name, address in ports.items()))
    return ports


def reload_at_hangup(server: Reloads) -> None:
    """From now on, reload at each SIGHUP, including one that arrived during the start."""
    import asyncio

    reloads: set[asyncio.Task[None]] = set()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_soon, server, reloads)
    signals.let_through(*signals.RELOADS)


def reload_soon(server: Reloads, tasks: set[asyncio.Task[None]]) -> None:
    """Reload certificates, tokens and the nats-server file; the task is kept in `tasks`."""
    import asyncio

    task = asyncio.get_running_loop().create_task(_reload(server))
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _reload(server: Reloads) -> None:
    with notify.reloading():
        if await server.reload():
            log.info("reloaded")


class Reloads(Protocol):
    """A server that can reload; `reload` returns whether it did."""

    async def reload(self) -> bool: ...


def debounced(handle: Callable[..., object]) -> Callable[..., object]:
    """The handler of all signals that end a server, called once for signals less than
    SIGNAL_APART_S apart: uvloop reports a signal a second time if another arrives together with it,
    and ctrl-C may come with a supervisor's SIGTERM."""
    last = -limits.SIGNAL_APART_S

    def called(*words: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= limits.SIGNAL_APART_S:
            last = now
            handle(*words)

    return called


def on_signal(number: int, stopping: asyncio.Event) -> None:
    """Request the stop at the first signal; exit at the second."""
    if stopping.is_set():  # second signal: do not wait for clients or disks
        log.warning("stopped at once by a second signal")
        os._exit(limits.EXIT_SIGNAL_BASE + number)
    stopping.set()


def write_ports_file(path: Path, ports: dict[str, str]) -> None:
    """Write by rename, so that readers never see an incomplete file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(orjson.dumps(ports, option=orjson.OPT_APPEND_NEWLINE))
        umask.widen(fresh, umask.FILE)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def lasting_memory() -> Iterator[None]:
    """For imports and the start: exclude all objects that exist at the end from garbage collection,
    and make collections rare. Threads share a heap.

    Modules and connections live long; scanning them repeatedly stops the loop for milliseconds and
    finds nothing. Messages are not Python objects, so there is little garbage. With very many logs,
    a single scan during the start takes seconds.
    """
    memory.limit_arenas(limits.ARENAS_MAX)
    memory.keep_free(limits.HEAP_FREE_BYTES, limits.HEAP_PIECE_BYTES_MAX)
    memory.merge_at_once()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*limits.GC_THRESHOLD)
        gc.enable()


def restrict_umask() -> None:
    """From now on, create files only for the server's user and group; see net/umask.py."""
    umask.narrow()


def raise_open_files_limit() -> None:
    """Raise the soft limit: each connection is an open file, and shells set 1024 by default.
    OSError: there are too few even for the event loop, which cannot report that itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        _raise_open_files_limit(soft, hard)
    found: list[int] = []
    try:
        while len(found) < limits.LOOP_FILES:
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for number in found:
            os.close(number)


def _raise_open_files_limit(soft: int, hard: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning(
            "the open files limit cannot be raised: %s", error, extra=logs.fields(limit=soft)
        )
    else:
        log.debug("open files limit raised", extra=logs.fields(old=soft, new=hard))


class OpenFilesMonitor:
    """Logs that the process has run out of open files, and that it can open files again."""

    def __init__(self, log: logging.Logger) -> None:
        self.log = log
        self.state = _FINE

    def check(self) -> None:
        """Check the number of open files and log a change of state."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        used = lowest_free()
        if used < 0:
            state = _NONE
        elif most != resource.RLIM_INFINITY and used * 100 >= most * net_limits.OPEN_FILES_FEW:
            state = _FEW
        else:
            state = _FINE
        if state == _FEW and self.state == _FINE:
            self.log.warning(
                "%d of %d files are open: few new connections are possible", used, most
            )
        elif state == _NONE and self.state != _NONE:
            self.log.error("too many open files (%d): new connections are closed at once", most)
        elif state == _FINE and self.state != _FINE:
            self.log.info("files can be opened again: %d of %d are open", used, most)
        self.state = state


def lowest_free() -> int:
    """The lowest free descriptor, which is about the number of open files; -1: none is free."""
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _FULL:
            return -1
        return 0  # no /dev/null: the number is unknown
    os.close(number)
    return number


async def until_stopped(stopping: asyncio.Event, log: logging.Logger) -> None:
    """Wait for the stop; check open files meanwhile."""
    import asyncio

    files = OpenFilesMonitor(log)
    while not stopping.is_set():
        files.check()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), net_limits.OPEN_FILES_LOOK / SECOND)
