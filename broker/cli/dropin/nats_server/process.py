"""The pid file, the ports file and `--signal` of `twinwire nats-server`."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from broker.base.gotext import go_quote, system_text
from broker.cli.dropin import errors
from broker.cli.dropin.goflags import FlagError
from broker.cli.dropin.nats_server.flags import PROGRAM
from broker.net.sockets import EVERYWHERE, join

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from broker.protocols.nats.settings import Settings

log = logging.getLogger("broker.nats")

SIGNALS: Final = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}
_COMM_MAX: Final = 15  # length of a process name in the kernel
_GET_ADDRESS: Final = 0x8915  # SIOCGIFADDR
# Ports file: key, listener, schemes without and with TLS.
_LISTENERS: Final = (
    ("nats", "nats", "nats", "tls"),
    ("monitoring", "monitor", "http", "https"),
    ("websocket", "websocket", "ws", "wss"),
)


def take_name(program: str = PROGRAM) -> None:
    """Give the process the name of the original, so that tools find it."""
    try:
        Path("/proc/self/comm").write_text(program[:_COMM_MAX])
    except OSError:
        log.debug("the process name cannot be changed")


def named(proc: Path = Path("/proc"), program: str = PROGRAM) -> list[int]:
    """Other processes of this name."""
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            name = (folder / "comm").read_text().rstrip("\n")
        except OSError:
            continue  # it has ended
        if program[:_COMM_MAX] in name and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return sorted(found)


def send(order: str, program: str = PROGRAM) -> None:
    """COMMAND, COMMAND=PID, COMMAND=FILE or COMMAND=PREFIX*. FlagError."""
    command, *rest = order.split("=")
    if len(rest) > 1:
        raise FlagError(errors.SIGNAL_PARAMETERS.format(" ".join(rest[1:])))
    wanted = _from_file(rest[0]) if rest else ""
    every, prefix = wanted.endswith("*"), wanted.removesuffix("*")
    if prefix and not (prefix.isascii() and prefix.isdigit() and int(prefix) > 0):
        raise FlagError(errors.PID_INVALID.format(prefix))
    pids = [int(prefix)] if prefix and not every else named(program=program)
    if len(pids) > 1 and not every:
        shown = "\n".join(map(str, pids))
        raise FlagError(errors.PID_MANY.format(program, shown))
    if not pids:
        raise FlagError(errors.PID_NONE.format(program))
    if command not in SIGNALS:
        raise FlagError(errors.SIGNAL_UNKNOWN.format(go_quote(command)))
    if failed := "".join(_kill(pid, command) for pid in pids if str(pid).startswith(prefix)):
        raise FlagError(failed)


def _from_file(text: str) -> str:
    try:
        return Path(text).read_text().strip()
    except (OSError, ValueError):
        return text


def _kill(pid: int, command: str) -> str:
    try:
        os.kill(pid, SIGNALS[command])
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return errors.SIGNAL_FAILED.format(go_quote(command), pid, reason)
    return ""


def write_pid(path: str) -> None:
    """Send the signal. OSError with Go's text."""
    try:
        Path(path).write_text(str(os.getpid()))
    except OSError as error:
        raise OSError(system_text("open", path, error)) from None


# --- ports file


def ports_path(folder: str, program: str) -> Path:
    """The path, with the original's file name."""
    return Path(folder) / f"{program}_{os.getpid()}.ports"


def write_ports(path: Path, ports: Mapping[str, tuple[str, int]], settings: Settings) -> None:
    """Write the addresses of each listener; a failure is only logged."""
    websocket = settings.websocket
    secure = {
        "nats": settings.tls is not None and not settings.allow_non_tls,
        "monitor": settings.https is not None,
        "websocket": websocket is not None and websocket.tls is not None,
    }
    found = {
        key: [f"{(plain, tls)[secure[name]]}://{where}" for where in reachable(*ports[name][:2])]
        for key, name, plain, tls in _LISTENERS
        if name in ports
    }
    fresh = path.with_name(f".{path.name}")
    try:
        fresh.write_bytes(orjson.dumps(found))
        fresh.replace(path)  # by rename: readers never see an incomplete file
    except OSError as error:
        text = system_text("open", str(path), error)
        log.error("%s", errors.PORTS_FILE.format(path, text))


def remove_ports(path: Path) -> None:
    """Remove the file; a failure is only logged."""
    try:
        path.unlink()
    except OSError as error:
        text = system_text("remove", str(path), error)
        log.error("%s", errors.PORTS_FILE_LEFT.format(path, text))


def reachable(host: str, port: int) -> list[str]:
    """host:port of a listener, for each interface if it listens on all."""
    hosts = [host]
    if host in EVERYWHERE:
        hosts = list(_addresses())
    return [join(host, port) for host in hosts]


def _addresses() -> Iterator[str]:
    """Addresses of this host, interface by interface."""
    six = _ipv6_addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", name.encode()))
                yield socket.inet_ntoa(answer[20:24])
            except OSError:
                pass  # the interface has none
            yield from six.get(name, ())


def _ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return found  # no IPv6
    for line in lines:
        digits, *_, name = line.split()
        address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
        found.setdefault(name, []).append(address)
    return found
