"""The broker's process: `twinwire serve`, with a thread that obeys the test which started it.

    python -c 'from twinwire.testing.process import main; main()' FD PARENT FLAG VALUE ...

FD is a socket that the process has inherited. The test sends one JSON object a line and receives
one for each, and one when the broker is ready. Nothing else can switch a fault on: `twinwire serve`
does not import this module, and without that socket it does not run. When the test's process ends,
however it does, so does this one.
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

    def obey(self) -> None:
        """Carry out requests until the test is gone; then end the process."""
        try:
            parent = os.pidfd_open(self._parent)
        except OSError:  # it has ended, or the kernel has no such call: the socket tells as well
            parent = -1
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        if parent >= 0:
            waiting.register(parent, select.POLLIN)
        held = b""
        while True:
            if any(fd == parent for fd, _ in waiting.poll()):
                break
            data = self._receive()
            if not data:
                break
            *lines, held = (held + data).split(b"\n")
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
    """Let file calls fail with these errnos, by kind, and writes and syncs take this much longer.
    How many calls were to fail before this and have."""
    from broker.runtime import vfs

    fired = sum(_FOR_EVER - left for kind in _FAIL_KINDS if (left := vfs.unfired(kind)))
    for kind in _FAIL_KINDS:
        number = errors.get(str(kind), 0)
        vfs.fail(kind, number, times=_FOR_EVER if number else 0)
    for kind in _SLOW_KINDS:
        vfs.slow(kind, int(delay_s * _NS))
    return fired


def drop_connections(ports: frozenset[int]) -> int:
    """Cut every TCP connection that a client has to one of these ports; how many there were."""
    dropped = 0
    for name in [path.name for path in Path("/proc/self/fd").iterdir()]:
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            # A second descriptor: the first may be closed, and its number used again, meanwhile.
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
    """Run the broker; the exit code is its own."""
    fd, parent, *flags = sys.argv[1:]
    control = Control(int(fd), int(parent))
    threading.Thread(target=control.obey, name="twinwire.testing", daemon=True).start()
    from broker.cli import serve

    given = dict(zip(flags[::2], flags[1::2], strict=True))
    sys.exit(serve.start(given, control.ready))
