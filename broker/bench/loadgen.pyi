"""The load generator's loop: non-blocking connections, one epoll, one thread, no GIL."""

import socket

from typing_extensions import disjoint_base

class LoadError(Exception): ...

@disjoint_base
class Load:
    moved: int
    def open(
        self,
        readers: list[tuple[socket.socket, bytes]],
        publishers: list[tuple[socket.socket, bytes]],
        recv_bytes: int,
        duration_ns: int,
        spin: bool,
    ) -> None: ...
    def step(self, milliseconds: int) -> bool: ...
    def reason(self) -> str: ...
    def times_ns(self) -> tuple[int, int, int]: ...
    def unread(self) -> list[bytes]: ...
    def close(self) -> None: ...
