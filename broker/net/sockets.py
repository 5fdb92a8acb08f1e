"""Sockets of listeners, and why one cannot be opened.

The originals are programs in Go, where 0.0.0.0, [::] and no host all mean every interface, IPv4 and
IPv6. Here each of the two has a socket, so that a peer's IPv4 address is not shown as an IPv6 one.
A machine without IPv6 (or IPv4) has one socket.

A command may listen before it imports its server: clients that connect meanwhile wait where the
kernel keeps connections that nobody has accepted, instead of being refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.net import limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, and meant
_ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104
_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})

# Listening sockets whose listeners do not exist yet, by address. Global, like the process's other
# open files.
_early: Final[dict[tuple[str, int], list[list[socket.socket]]]] = {}


class ListenError(OSError):
    """A listener that cannot be opened. Its text is the address and the reason."""

    def __init__(self, listen: tuple[str, int], cause: OSError) -> None:
        number = cause.errno or 0
        # The loop's own texts contain the address; numbers below 0 are those of the resolver.
        reason = os.strerror(number) if number > 0 else str(cause.strerror or cause)
        super().__init__(number, reason)
        self.listen = listen
        self.reason = reason
        self.unknown_host = number < 0

    def __str__(self) -> str:
        host, port = self.listen
        if port == limits.UNIX_SOCKET_PORT:
            return f"{host}: {self.reason}"
        return f"{join(host, port)}: {self.reason}"


@contextlib.contextmanager
def opening(listen: tuple[str, int]) -> Iterator[None]:
    """Convert errors in the block to a ListenError for this address."""
    try:
        yield
    except OSError as error:
        raise ListenError(listen, error) from error


def join(host: str, port: int) -> str:
    """host:port, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_of(address: tuple[str, int] | None) -> int:
    """The port for others to connect to: 0 if there is none, as with a unix socket."""
    return 0 if address is None else max(0, address[1])


def text_of(address: tuple[str, int] | None) -> str:
    """HOST:PORT, or the path of a unix socket; empty if there is none."""
    if address is None:
        return ""
    host, port = address
    return host if port == limits.UNIX_SOCKET_PORT else join(host, port)


def listen_early(addresses: Iterable[tuple[str, int]]) -> None:
    """Listen at these addresses; `bound` then returns the sockets. If this fails, nothing is left
    open, and the listener reports the error when it tries again."""
    for host, port in addresses:
        if port == limits.UNIX_SOCKET_PORT or (port and (host, port) in _early):
            continue
        with contextlib.suppress(OSError, OverflowError), contextlib.ExitStack() as undo:
            made = bound(host, port)
            for one in made:
                undo.callback(one.close)
            for one in made:
                one.listen(limits.ACCEPT_BACKLOG)
            undo.pop_all()
            _early.setdefault((host, port), []).append(made)


def use_early(address: tuple[str, int], made: list[socket.socket]) -> None:
    """Let `bound` return these sockets for this address."""
    _early.setdefault(address, []).append(made)


def close_early() -> None:
    """Close the sockets that no listener has used."""
    while _early:
        for made in _early.popitem()[1]:
            for one in made:
                one.close()


def problem_of(host: str, port: int) -> ListenError | None:
    """Why a listener cannot be opened here now; None if it can."""
    if not port or port == limits.UNIX_SOCKET_PORT:
        return None
    try:
        for one in bound(host, port):
            one.close()
    except OSError as error:
        return ListenError((host, port), error)
    return None


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets that are bound, and listen only if they did before; port 0 picks a free port, the
    same for all. Of a name with several addresses the first IPv4 one is used, else the first.
    OSError: the address is in use, or not one of this host."""
    if early := _early.get((host, port)):
        return early.pop(0)
    if host not in EVERYWHERE:
        return [_bind_host(host, port)]
    for last in range(limits.FREE_PORT_TRIES):
        try:
            return _bind_all(port)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE or last == limits.FREE_PORT_TRIES - 1:
                raise
    raise AssertionError


def _bind_host(host: str, port: int) -> socket.socket:
    # Text is encoded with a codec for names that are not ASCII, which takes a while to import.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return _bind(family, address)


def _bind_all(port: int) -> list[socket.socket]:
    with contextlib.ExitStack() as undo:
        made: list[socket.socket] = []
        missing: OSError | None = None
        for family, host in _ANY.items():
            try:
                one = _bind(family, (host, port))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                missing = error
                continue
            undo.callback(one.close)
            made.append(one)
            port = one.getsockname()[1]
        if not made:
            assert missing is not None
            raise missing
        undo.pop_all()
    return made


def _bind(family: int, address: tuple[str | int, ...] | tuple[int, bytes]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def is_answered(path: str) -> bool:
    """Whether another process listens on this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == 0


def remove_socket(path: str) -> None:
    """Remove the file of a unix socket."""
    with contextlib.suppress(OSError):
        Path(path).unlink()
