"""Socket activation: listeners that a service manager has opened (sd_listen_fds(3)).

The manager passes listening sockets with names, and keeps its own copies: clients that connect
while the broker restarts wait instead of being refused. A name is that of the listener's key in the
configuration (`nats`, `nsq`, `nsq-http`); the address has to be the configured one, because who may
use a listener depends on it.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from broker.net import errors, sockets

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

FIRST: Final = 3  # descriptor
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class ActivationError(Exception):
    """A socket that was passed cannot be used."""


def name_of(key: str) -> str:
    """The name of a listener's socket: `nsq` of `nsq.listen`, `nsq-http` of `nsq.http`."""
    return key.removesuffix(".listen").replace(".", "-")


def passed(environment: MutableMapping[str, str]) -> list[tuple[str, socket.socket]]:
    """Names and sockets that this process was started with, once: the variables are removed."""
    pid, count, names = (environment.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []  # they are those of a parent process
    given = names.split(":")
    made = []
    for at in range(int(count)):
        one = socket.socket(fileno=FIRST + at)
        one.set_inheritable(False)
        one.setblocking(False)
        made.append((given[at] if at < len(given) else "", one))
    return made


def adopt(
    listeners: Iterable[tuple[str, tuple[str, int]]],
    environment: MutableMapping[str, str] = os.environ,
) -> None:
    """Use sockets that were passed for these listeners, given by key and configured address.
    Listeners without a socket are opened as usual. ActivationError: a socket is none of them."""
    if "LISTEN_FDS" not in environment:
        return
    found: dict[str, list[socket.socket]] = {}
    for name, one in passed(environment):
        found.setdefault(name, []).append(one)
    addresses = {name_of(key): (address[0], address[1]) for key, address in listeners}
    for name, made in found.items():
        if name not in addresses:
            known = ", ".join(addresses)
            raise ActivationError(errors.PASSED_NAME.format(name, known))
        host, port = addresses[name]
        for one in made:
            _check(name, one, host, port)
        sockets.use_early((host, port), made)


def _check(name: str, one: socket.socket, host: str, port: int) -> None:
    """ActivationError unless this socket listens at this address."""
    if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
        raise ActivationError(errors.PASSED_KIND.format(name))
    own_host, own_port = one.getsockname()[:2]
    if host in sockets.EVERYWHERE:
        same = own_host in sockets.EVERYWHERE
    else:
        same = own_host in _resolved(host)
    if not same or port != own_port:
        here, there = sockets.join(own_host, own_port), sockets.join(host, port)
        raise ActivationError(errors.PASSED_ADDRESS.format(name, here, there))
    if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ActivationError(errors.PASSED_KIND.format(name))


def _resolved(host: str) -> set[object]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()  # a name that does not exist has no address
    return {address[0] for *_, address in found}
