"""An auth server for nsqd, in a thread: the test chooses its answers and their time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from support.servers.processes import Address

DEADLINE_S = 30.0


class Asked(NamedTuple):
    """One question."""

    method: str
    path: str
    values: dict[str, list[str]]
    headers: dict[str, str]

    @property
    def secret(self) -> str:
        return self.values["secret"][0]


class Reply(NamedTuple):
    """An answer, and the event to wait for before it."""

    body: bytes
    status: int = 200
    released: threading.Event | None = None


def grant(*rows: dict[str, object], ttl: object = 60, **rest: object) -> bytes:
    """A good answer; a row is one authorization."""
    page = {"ttl": ttl, "authorizations": list(rows), "identity": "me", "identity_url": "http://x"}
    return json.dumps({**page, **rest}).encode()


def row(
    topic: str = ".*", channels: tuple[str, ...] = (".*",), *permissions: str
) -> dict[str, Any]:
    """One authorization; both permissions unless some are given."""
    allowed = permissions or ("subscribe", "publish")
    return {"topic": topic, "channels": list(channels), "permissions": list(allowed)}


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that did not wait for their answer."""

    daemon_threads = True

    def handle_error(self, *_args: object) -> None:
        pass


class AuthServer:
    """Answers each question with `reply`, or with what `replies` has for the secret."""

    def __init__(self, reply: Reply | bytes | None = None) -> None:
        self.reply = reply if reply is not None else grant(row())
        self.replies: dict[str, Reply | bytes | Callable[[], Reply | bytes]] = {}
        self.asked: list[Asked] = []
        self._arrived = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                values = parse_qs(url.query, keep_blank_values=True)
                outer._answer(self, Asked("GET", url.path, values, dict(self.headers.items())))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = dict(self.headers.items())
                outer._answer(self, Asked("POST", self.path, json.loads(body), headers))

            def log_message(self, *_args: object) -> None:
                pass

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def _answer(self, handler: BaseHTTPRequestHandler, asked: Asked) -> None:
        with self._arrived:
            self.asked.append(asked)
            self._arrived.notify_all()
        found = self.replies.get(asked.secret, self.reply)
        found = found() if callable(found) else found
        reply = found if isinstance(found, Reply) else Reply(found)
        if reply.released is not None:
            reply.released.wait(DEADLINE_S)
        handler.send_response(reply.status)
        handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        handler.wfile.write(reply.body)

    def wait_asked(self, secret: str, times: int = 1) -> Asked:
        """Wait until that secret was asked about so often; the last of the questions."""

        def found() -> list[Asked]:
            return [asked for asked in self.asked if asked.secret == secret]

        with self._arrived:
            assert self._arrived.wait_for(lambda: len(found()) >= times, DEADLINE_S)
            return found()[-1]

    @property
    def address(self) -> Address:
        host, port = self._server.server_address[:2]
        return Address(str(host), int(port))

    def __enter__(self) -> AuthServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(DEADLINE_S)
