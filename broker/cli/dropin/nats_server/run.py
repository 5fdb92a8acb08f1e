"""One run of a NATS server: its first and last log lines, its files, and its signals.

INT   stop, exit 0                  USR1  open the log file again
TERM  stop, exit 1 (not while it    USR2  lame duck mode, then exit 0
      is in lame duck mode)               HUP   reload the configuration file
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Final, Protocol

from broker import __version__
from broker.base.gotext import go_quote
from broker.base.patterns import lazy_pattern
from broker.base.units import PORT_MAX
from broker.cli import notify, signals
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server import process
from broker.cli.dropin.nats_server.log import LogError
from broker.cli.serve import debounced, lasting_memory, until_stopped
from broker.config.load import ConfigError
from broker.net import activation, sockets
from broker.net.sockets import ListenError, join
from broker.protocols.nats import errors as nats_errors
from broker.protocols.nats import limits as nats_limits
from broker.protocols.nats import reload
from broker.protocols.nats.conf.text import ConfErrors
from broker.protocols.nats.settings import SYSTEM_ACCOUNT
from broker.protocols.nats.trace import Tracer
from broker.server import limits as server_limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from broker.cli.dropin.nats_server.log import Log
    from broker.protocols.nats.client.frontend import NatsFrontend
    from broker.protocols.nats.settings import Address, Settings

log = logging.getLogger("broker.nats")

_NAMES: Final = {
    signal.SIGINT: "interrupt",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "hangup",
    signal.SIGUSR1: "user defined signal 1",
    signal.SIGUSR2: "user defined signal 2",
}
_HASHED: Final = lazy_pattern(r"\$2[abxy]\$\d\d\$")


class Server(Protocol):
    """The part of NatsServer that this module uses."""

    server_id: str
    server_name: str
    ports: dict[str, tuple[str, int]]
    frontend: NatsFrontend
    reread: Callable[[], Awaitable[str]] | None  # set by a request in the system account

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def lame_duck(self) -> None: ...
    async def reload(self, settings: Settings) -> object: ...


class Run:
    """A server from its first log line to its last."""

    terminated = server_limits.EXIT_OK  # the exit code after SIGTERM
    signal_level = logging.INFO  # of the log line about a signal
    shows_digest = True  # in log lines about the configuration file

    def __init__(
        self,
        settings: Settings,
        server_log: Log,
        make: Callable[[Settings], Server],
        *,
        file: str = "",
        read_again: Callable[[], Settings],
        program: str,
        remarks: tuple[str, ...] = (),
    ) -> None:
        """`read_again`: returns the current settings of file and flags."""
        self.settings = settings
        self.server_log = server_log
        self.make = make
        self.file = file
        self.read_again = read_again
        self.program = program
        self.remarks = remarks
        self.code = server_limits.EXIT_OK
        self.server: Server
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._duck: asyncio.Task[None] | None = None
        self._reloads: set[asyncio.Task[str]] = set()

    async def run(self) -> int:
        """Run until a signal; return the exit code."""
        try:
            self.server = self.make(self.settings)
        except ConfigError as error:  # in the environment
            return fatal(str(error))
        except OSError as error:  # a folder that cannot be created
            return fatal(errors.START.format(error))
        self.server.reread = self.reload
        self._trace()
        for line in self._first_lines():
            log.info("%s", line)
        if problem := self._prelude():
            return fatal(problem)
        loop = asyncio.get_running_loop()
        stop = debounced(self.on_signal)
        for number in _NAMES:
            # each SIGHUP reloads: the file may have changed since the last
            handle = stop if number in signals.STOPS else self.on_signal
            loop.add_signal_handler(number, handle, number)
        signals.let_through(*signals.STOPS, signal.SIGUSR1)
        try:
            with lasting_memory():
                await self.start_server()
            sockets.close_early()
        except Exception as error:  # of any kind: the operator gets one line
            log.debug("not started", exc_info=error)
            return fatal(start_problem(error, self.settings))
        for level, line in listener_lines(self.settings, self.server.ports):
            log.log(level, "%s", line)
        self._write_ports()
        log.info("Server is ready")
        if problem := await self.when_ready():
            self.code = fatal(problem)
        else:
            ports = self.server.ports
            notify.ready(", ".join(f"{name} {join(*bound[:2])}" for name, bound in ports.items()))
            # the server can now reload and enter lame duck mode
            signals.let_through(signal.SIGHUP, signal.SIGUSR2)
            await until_stopped(self._stopping, log)
        return await self._end()

    def _prelude(self) -> str:
        """Log the first lines and write the pid file; return the reason if that fails."""
        if problem := self.early_problem():
            return problem
        try:
            activation.adopt(passable(self.settings))
        except activation.ActivationError as error:
            return errors.START.format(error)
        if plain_passwords(self.settings):
            log.warning("Plaintext passwords detected, use nkeys or bcrypt")
        for line in self.remarks:
            log.warning("%s", line)
        if self.file:
            log.info("Using configuration file: %s%s", self.file, self._digest)
        if self.settings.max_payload > nats_limits.NATS_MAX_PAYLOAD_ADVISED:
            log.warning("%s", errors.PAYLOAD_LARGE)
        for level, line in trusted(self.settings):
            log.log(level, "%s", line)
        if self.settings.pid_file:
            try:
                process.write_pid(self.settings.pid_file)
            except OSError as error:
                return errors.PID_FILE.format(error)
        return ""

    def early_problem(self) -> str:
        """The error that is found only when the server starts; empty if none."""
        return early_problem(self.settings)

    async def when_ready(self) -> str:
        """Start everything else. Returns why it cannot start, or nothing."""
        return ""

    async def start_server(self) -> None:
        """Start the server and everything that clients need."""
        await self.server.start()

    async def stop_server(self) -> None:
        """Stop the server and everything that was started with it."""
        await self.server.stop()

    def _trace(self) -> None:
        """Trace the traffic of sessions, if that is configured."""
        settings = self.settings
        system = settings.system_account or SYSTEM_ACCOUNT
        silent = "" if settings.trace_verbose else system
        self.server.frontend.tracer = (
            Tracer(settings.max_traced_msg_len, silent, settings.trace_headers)
            if settings.trace
            else None
        )

    async def _end(self) -> int:
        notify.stopping()
        log.info("Initiating Shutdown...")
        try:
            await self.stop_server()
        except Exception:
            log.exception("%s", "not stopped cleanly")
            self.code = server_limits.EXIT_STOP_FAILED
        self._remove_ports()
        log.info("Server Exiting..")
        return self.code

    def _first_lines(self) -> Iterator[str]:
        yield "Starting nats-server"
        yield f"  Version:  {nats_limits.NATS_VERSION}"
        yield f"  Twinwire: {__version__}"
        if cluster := self.settings.cluster:
            yield f"  Cluster:  {cluster}"
        yield f"  Name:     {self.server.server_name}"
        yield f"  ID:       {self.server.server_id}"

    @property
    def _digest(self) -> str:
        """The digest of the configuration file for a log line; empty if there is none."""
        digest = self.settings.digest
        return f" ({digest})" if digest and self.shows_digest else ""

    # --- signals

    def on_signal(self, number: signal.Signals) -> None:
        """Handle a signal; the table is at the top of this module."""
        log.log(self.signal_level, 'Trapped "%s" signal', _NAMES[number])
        if number in (signal.SIGINT, signal.SIGTERM):
            self._stop(number)
        elif number == signal.SIGUSR1:
            self.server_log.reopen()
        elif number == signal.SIGUSR2:
            self.lame_duck()
        else:
            self.reload_soon()

    def _stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():  # second signal: do not wait for clients
            log.warning("stopped at once by a second signal")
            os._exit(server_limits.EXIT_SIGNAL_BASE + number)
        if number == signal.SIGTERM and self._duck is not None:
            return
        self.code = server_limits.EXIT_OK if number == signal.SIGINT else self.terminated
        self._stopping.set()
        if self._duck is not None:
            self._duck.cancel()

    def lame_duck(self) -> None:
        """Accept no more clients, disconnect the existing ones, stop. Does nothing the second
        time."""
        if self._duck is None and not self._stopping.is_set() and self.server.ports:
            self._duck = asyncio.get_running_loop().create_task(self._lame_duck())

    async def _lame_duck(self) -> None:
        notify.stopping("lame duck mode")
        log.info("Entering lame duck mode, stop accepting new clients")
        try:
            await self.server.lame_duck()
        except Exception:
            log.exception("%s", "lame duck mode failed")
        self._stopping.set()

    def reload_soon(self) -> None:
        """Reload the configuration, after any reload in progress."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def reload(self) -> str:
        """Reload now; return the error, if any. The old settings then stay."""
        async with self._reloading:
            with notify.reloading():
                return await self._try_reload()

    async def _try_reload(self) -> str:
        try:
            await self._reload()
        except (reload.ReloadRefused, FlagError, ConfErrors, LogError) as error:
            problem = str(error)
        except Exception as error:  # a running server continues unchanged
            log.debug("not reloaded", exc_info=error)
            problem = str(error) or type(error).__name__
        else:
            log.info("Reloaded server configuration%s", self._digest)
            return ""
        for line in problem.splitlines():
            log.error("%s", nats_errors.RELOAD_FAILED.format(line))
        return problem

    async def _reload(self) -> None:
        if not self.file:
            raise FlagError(nats_errors.RELOAD_FILE)
        old = self.settings
        new = await asyncio.to_thread(self.read_again)  # clients must not wait for a long file
        if not old.address[1]:  # a free port was picked: keep it
            old = dataclasses.replace(old, listen=(old.address[0], self.server.ports["nats"][1]))
        plan = reload.plan(old, new)
        await self.server.reload(new)
        self.settings = new
        for line in plan.lines:
            log.info("%s", line)
        if reload.Action.TRACE in plan.actions:
            self._trace()
        if reload.Action.LOGGING in plan.actions:
            self.server_log.use(new)
        if reload.Action.PID_FILE in plan.actions and new.pid_file:
            try:
                process.write_pid(new.pid_file)
            except OSError as error:
                log.error("%s", errors.PID_FILE_AGAIN.format(error))
        if reload.Action.PORTS_FILE in plan.actions:
            self._remove_ports(old)
            self._write_ports()

    # --- ports file

    def _write_ports(self) -> None:
        if folder := self.settings.ports_file_dir:
            path = process.ports_path(folder, self.program)
            process.write_ports(path, self.server.ports, self.settings)

    def _remove_ports(self, settings: Settings | None = None) -> None:
        if folder := (settings or self.settings).ports_file_dir:
            process.remove_ports(process.ports_path(folder, self.program))


def fatal(line: str) -> int:
    """Log why the server does not start; return the exit code."""
    log.critical("%s", line)
    return server_limits.EXIT_START_FAILED


def plain_passwords(settings: Settings) -> bool:
    """Whether a password is configured in plain text."""
    block = settings.authorization
    by_certificate = settings.tls is not None and settings.tls.verify_and_map
    users = [user for account in settings.accounts for user in account.users]
    passwords = [u.password for u in (*block.users, *users) if not u.nkey]
    passwords = [p for p in passwords if p or not by_certificate]
    if block.password:
        passwords.append(block.password)
    return any(not _HASHED.match(password) for password in passwords)


# --- listeners


def passable(settings: Settings) -> Iterator[tuple[str, Address]]:
    """Name and address of the listeners that a service manager may open."""
    websocket, leafs = settings.websocket, settings.leafnodes
    listeners = {
        "nats": settings.address,
        "monitor": settings.https or settings.http,
        "websocket": None if websocket is None else websocket.listen,
        "leafnodes": None if leafs is None else leafs.listen,
    }
    for name, address in listeners.items():
        if address:
            yield name, address


def listener_lines(
    settings: Settings, ports: Mapping[str, tuple[str, int]]
) -> Iterator[tuple[int, str]]:
    """Level and text of the log line of each listener, in the original's order."""
    info, warning = logging.INFO, logging.WARNING
    where = {name: join(*bound[:2]) for name, bound in ports.items()}
    pages = settings.https or settings.http
    if "monitor" in ports and pages is not None:
        scheme = "https" if settings.https else "http"
        shown = join(pages[0], ports["monitor"][1])
        yield info, f"Starting {scheme} monitor on {shown}"
    if "websocket" in ports and settings.websocket is not None:
        scheme = "wss" if settings.websocket.tls else "ws"
        yield info, f"Listening for websocket clients on {scheme}://{where['websocket']}"
        if not settings.websocket.tls:
            yield warning, "Websocket not configured with TLS. DO NOT USE IN PRODUCTION!"
    if "leafnodes" in ports:
        yield info, f"Listening for leafnode connections on {where['leafnodes']}"
    yield info, f"Listening for client connections on {where['nats']}"
    if settings.proxy_protocol:
        yield info, "PROXY protocol enabled for client connections"
    if settings.tls is not None and not settings.allow_non_tls:
        yield info, "TLS required for client connections"
        if settings.tls.handshake_first and not settings.tls.handshake_first_wait_ns:
            yield warning, errors.TLS_FIRST


def trusted(settings: Settings) -> Iterator[tuple[int, str]]:
    """Level and text of the log lines about operators."""
    if settings.resolver is None or not settings.resolver.operators:
        return
    from broker.protocols.nats.auth.jwt.accounts import operator_token

    yield logging.INFO, "Trusted Operators"
    named = []
    for text in settings.resolver.operators:
        token = operator_token(text)
        claims = token.claims
        named.append(token.body.system_account)
        yield logging.INFO, f"  System  : {go_quote(claims.aud)}"
        yield logging.INFO, f"  Operator: {go_quote(claims.name)}"
        yield logging.INFO, f"  Issued  : {_moment(claims.iat)}"
        yield logging.INFO, f"  Expires : {_moment(claims.exp) if claims.exp else 'Never'}"
    if not settings.system_account and not (len(named) == 1 and named[0]):
        yield logging.WARNING, "Trusted Operators should utilize a System Account"


def _moment(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z %Z", time.localtime(seconds))


def early_problem(settings: Settings) -> str:
    """The error that is found only when the server starts; empty if none."""
    http, https = settings.http, settings.https
    if http and https:
        return errors.MONITOR.format(errors.MONITOR_BOTH.format(http[1], https[1]))
    if https and settings.tls is None:
        return errors.MONITOR.format(errors.MONITOR_TLS)
    pages = settings.https or settings.http
    if pages is not None and not _is_port(pages[1]):
        return errors.MONITOR.format(errors.MONITOR_LISTEN.format(_no_port(pages[1])))
    if not _is_port(settings.address[1]):
        return errors.LISTEN.format(join(*settings.address), _no_port(settings.address[1]))
    return _wrong_advertise(settings)


def _wrong_advertise(settings: Settings) -> str:
    if problem := reload.advertise_problem(settings.client_advertise):
        return errors.ADVERTISE.format(settings.client_advertise, problem)
    leafs = settings.leafnodes
    where = leafs.advertise if leafs is not None and leafs.listen is not None else ""
    if problem := reload.advertise_problem(where):
        return errors.ADVERTISE_LEAF.format(where, problem)
    pages = settings.websocket
    problem = reload.advertise_problem(pages.advertise) if pages is not None else ""
    return errors.ADVERTISE_WEBSOCKET.format(problem) if problem else ""


def _is_port(port: int) -> bool:
    return 0 <= port <= PORT_MAX


def _no_port(port: int) -> str:
    return f"listen tcp: address {port}: invalid port"


def start_problem(error: Exception, settings: Settings) -> str:
    """The failed listener and the reason, in the original's wording."""
    if not isinstance(error, ListenError):
        return errors.START.format(error)
    host, port = error.listen
    where = join(host, port)
    text = (
        f"listen tcp: lookup {host}: no such host"
        if error.unknown_host
        else f"listen tcp {where}: bind: {error.reason.lower()}"
    )
    pages, websocket, leafs = (
        settings.https or settings.http,
        settings.websocket,
        settings.leafnodes,
    )
    if port != settings.address[1]:
        if pages is not None and port == pages[1]:
            return errors.MONITOR.format(errors.MONITOR_LISTEN.format(text))
        if websocket is not None and port == websocket.listen[1]:
            return errors.LISTEN_WEBSOCKET.format(text)
        if leafs is not None and leafs.listen is not None and port == leafs.listen[1]:
            return errors.LISTEN_LEAF.format(port, text)
    return errors.LISTEN.format(where, text)
