"""The broker's process: `twinwire serve`, with a thread that executes requests of the test.

    python -c 'from twinwire.testing.process import main; main()' FD PARENT FLAG VALUE ...

FD is a socket that the process has inherited. The test sends one JSON object per line and receives
one for each; another one is sent when the broker is ready. Only the test can start a fault:
`twinwire serve` does not import this module, which does not run without the socket. When the test's
process ends, this process is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# Kinds of file calls, as in broker/runtime/vfs.pxd.
WRITE: Final = 1
SYNC: Final = 2
SYNC_PATH: Final = 6
CREATE: Final = 7
_FAIL_KINDS: Final = (WRITE, CREATE)
_SLOW_KINDS: Final = (WRITE, SYNC, SYNC_PATH)
_FOR_EVER: Final = 1 << 60
_NS: Final = 1_000_000_000


class Control:
    """The socket to the test."""

    def __init__(self, fd: int, parent: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._parent = parent
        self._writing = threading.Lock()
        self._ports: frozenset[int] = frozenset()

    def ready(self, addresses: Mapping[str, str]) -> None:
        """Tell the test that all listeners are open."""
        self._ports = frozenset(int(text.rpartition(":")[2]) for text in addresses.values())
        self._send({"ready": dict(addresses)})

    def _send(self, answer: dict[str, Any]) -> None:
        with self._writing:
            self._socket.sendall(json.dumps(answer).encode() + b"\n")

    def run(self) -> None:
        """Execute requests until the test's process has ended; then kill this process."""
        try:
            parent = os.pidfd_open(self._parent)
        except OSError:  # it has ended, or there is no such call: then the socket's end is enough
            parent = -1
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if parent >= 0:
            waiting.register(parent, select.POLLIN)
        rest = b""
        while True:
            if any(fd == parent for fd, _ in waiting.poll()):
                break
            data = self._receive()
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._send(self._answer(json.loads(line)))
        os.kill(os.getpid(), signal.SIGKILL)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except OSError:
            return b""

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request["do"] == "faults":
                return {"ok": set_faults(request["errors"], request["delay_s"])}
            return {"ok": drop_connections(self._ports)}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def set_faults(errors: Mapping[str, int], delay_s: float) -> int:
    """Let file calls fail with these errnos, by kind, and delay writes and syncs. Returns the
    number of calls that failed because of the earlier faults."""
    from broker.runtime import vfs

    fired = sum(_FOR_EVER - left for kind in _FAIL_KINDS if (left := vfs.unfired(kind)))
    for kind in _FAIL_KINDS:
        number = errors.get(str(kind), 0)
        vfs.fail(kind, number, times=_FOR_EVER if number else 0)
    for kind in _SLOW_KINDS:
        vfs.slow(kind, int(delay_s * _NS))
    return fired


def drop_connections(ports: frozenset[int]) -> int:
    """Close every TCP connection of a client to one of these ports, and return their number."""
    dropped = 0
    for name in [path.name for path in Path("/proc/self/fd").iterdir()]:
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            # Another thread may close the descriptor and reuse its number, so it is duplicated.
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in {socket.AF_INET, socket.AF_INET6}:
                    continue
                one.getpeername()  # OSError: it listens
                if one.getsockname()[1] in ports:
                    one.shutdown(socket.SHUT_RDWR)
                    dropped += 1
        except OSError:
            continue
    return dropped


def main() -> None:
    """Run the broker, and exit with its exit code."""
    fd, parent, *flags = sys.argv[1:]
    control = Control(int(fd), int(parent))
    threading.Thread(target=control.run, name="twinwire.testing", daemon=True).start()
    from broker.cli import serve

    values = dict(zip(flags[::2], flags[1::2], strict=True))
    sys.exit(serve.start(values, control.ready))
