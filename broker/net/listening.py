"""What is said of a door that cannot be opened."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from broker.net import limits

if TYPE_CHECKING:
    from collections.abc import Iterator


class ListenError(OSError):
    """A door that cannot be opened. As text: where it should be, and why it is not there."""

    def __init__(self, listen: tuple[str, int], cause: OSError) -> None:
        number = cause.errno or 0
        # The loop's own words have the address in them; numbers below 0 are the resolver's.
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
    """Whatever fails in here is told as a failure of the door with this address."""
    try:
        yield
    except OSError as error:
        raise ListenError(listen, error) from error


def join(host: str, port: int) -> str:
    """host:port, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
