"""A proxy between a client and the bulk API that acts in the middle of one chosen request.

    with FaultProxy(server) as proxy:
        proxy.interrupt(r"POST .*/commit", ANSWERED, server.kill)

A moment is one of

    ASKED      the broker has not seen the request
    SENT       it has, and may be at any point of its work
    ANSWERED   it has begun to answer, and the client has half of the answer

The act closes the connection. Clients send one request after the other, each head in its own
packet, so bytes that look like the start of a request are one.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from typing import Self

from support.servers.processes import Address, Server

ASKED, SENT, ANSWERED = "asked", "sent", "answered"
READ_BYTES = 1 << 16
_HEAD = re.compile(rb"(?:GET|POST|PUT|DELETE) /\S* HTTP/1\.1\r\n")


class FaultProxy:
    """The proxy. Clients use its `address` instead of the broker's."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.acted = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._wanted: re.Pattern[bytes] | None = None
        self._moment, self._left = ASKED, 0
        self._act: Callable[[], object] = lambda: None
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    @property
    def bulk(self) -> Address:
        """The address, under the name that a Server has for it."""
        return self.address

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for end in (self._listener, *self._open):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for thread in list(self._threads):
            thread.join()

    def interrupt(
        self, request: str, moment: str, act: Callable[[], object], *, after: int = 0
    ) -> None:
        """Call `act` once, at this moment of a request that matches `request`. `after`: skip this
        number of matching requests first."""
        with self._lock:
            self.acted.clear()
            self._moment, self._left, self._act = moment, after, act
            self._wanted = re.compile(request.encode())

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            broker = socket.create_connection(self.server.bulk)
            with broker:
                with self._lock:
                    self._open |= {client, broker}
                try:
                    self._relay(client, broker)
                finally:
                    with self._lock:
                        self._open -= {client, broker}

    def _relay(self, client: socket.socket, broker: socket.socket) -> None:
        """Relay requests on this thread and answers on another one."""
        interrupted = threading.Event()
        self._spawn(self._answers, client, broker, interrupted)
        while data := client.recv(READ_BYTES):
            mine = self._is_it(data)
            if mine and self._moment == ASKED:
                self._do(client, broker)
                return
            if mine and self._moment == ANSWERED:
                interrupted.set()
            broker.sendall(data)
            if mine and self._moment == SENT:
                left = _length(data)
                while left > 0 and (data := client.recv(READ_BYTES)):
                    broker.sendall(data)
                    left -= len(data)
                self._do(client, broker)
                return
        with contextlib.suppress(OSError):
            broker.shutdown(socket.SHUT_RDWR)

    def _answers(
        self, client: socket.socket, broker: socket.socket, interrupted: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := broker.recv(READ_BYTES):
                if interrupted.is_set():
                    client.sendall(data[: len(data) // 2])
                    self._do(client, broker)
                    return
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _is_it(self, data: bytes) -> bool:
        with self._lock:
            head = _HEAD.match(data)
            if head is None or self._wanted is None or not self._wanted.match(head[0]):
                return False
            if self._left:
                self._left -= 1
                return False
            self._wanted = None
            return True

    def _do(self, client: socket.socket, broker: socket.socket) -> None:
        try:
            self._act()
        finally:
            for end in (client, broker):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self.acted.set()


def _length(data: bytes) -> int:
    """The bytes of the body of a request that were not received yet."""
    head, _, begun = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
    return int(length[1]) - len(begun) if length is not None else 0
