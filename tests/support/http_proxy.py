"""An HTTP proxy that knows CONNECT, in a thread of the test."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

BLOCK = 1 << 16


class HttpProxy:
    """Listens on a free port; `requests` has the head of each request."""

    def __init__(
        self,
        *,
        login: tuple[str, str] | None = None,
        answer: bytes = b"",
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`answer`: what each request is answered with, instead of a tunnel."""
        self.requests: list[bytes] = []
        self.open: set[socket.socket] = set()
        self._token = base64.b64encode(":".join(login).encode()) if login is not None else b""
        self._answer = answer
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            with sock:
                self._tunnel(sock)

    def _tunnel(self, sock: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = sock.recv(1)
            if not byte:
                return
            head += byte
        self.requests.append(head)
        if self._answer:
            sock.sendall(self._answer)
            return
        if self._token and b"Proxy-Authorization: Basic " + self._token not in head:
            sock.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        with socket.create_connection((host, int(port))) as behind:
            # The hub's first bytes may come in one read with the answer.
            sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n" + behind.recv(BLOCK))
            self.open |= {sock, behind}
            threading.Thread(target=_relay, args=(sock, behind), daemon=True).start()
            _relay(behind, sock)
            self.open -= {sock, behind}

    def cut(self) -> None:
        """Break the connections."""
        for sock in list(self.open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a thread waits in accept
        self._listener.close()
        self.cut()


def _relay(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(BLOCK):
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def http_proxy(
    *,
    login: tuple[str, str] | None = None,
    answer: bytes = b"",
    context: ssl.SSLContext | None = None,
) -> Iterator[HttpProxy]:
    proxy = HttpProxy(login=login, answer=answer, context=context)
    try:
        yield proxy
    finally:
        proxy.close()
