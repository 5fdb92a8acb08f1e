"""Sockets to listen on.

The originals are programs in Go, where every interface means every one: 0.0.0.0, [::] and no host
at all take both IPv4 and IPv6. Here that is a socket for each of the two, so that a peer's address
stays what it is instead of an IPv4 address within IPv6. A host without IPv6 (or IPv4) has one.
"""

from __future__ import annotations

import contextlib
import errno
import socket

from broker.net import limits

EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, and meant
_ANY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104
_ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


def bound(host: str, port: int) -> list[socket.socket]:
    """Bound, not yet listened on; port 0 is a free one, the same for all. OSError when it is
    taken or the host is not ours; of a name with several addresses the first is taken, an IPv4
    one if there is any."""
    if host not in EVERYWHERE:
        return [_one(host, port)]
    for last in range(limits.FREE_PORT_TRIES):
        try:
            return _everywhere(port)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE or last == limits.FREE_PORT_TRIES - 1:
                raise
    raise AssertionError


def _one(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return _bind(family, address)


def _everywhere(port: int) -> list[socket.socket]:
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
