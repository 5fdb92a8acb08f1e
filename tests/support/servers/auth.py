"""An auth server whose answers the test chooses."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Asked = dict[str, Any]


def everything(ttl: int = 3600, **more: Any) -> dict[str, Any]:
    """An answer that allows all there is."""
    entry = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
    return {
        "ttl": ttl,
        "identity": "me",
        "identity_url": "http://me",
        "authorizations": [entry],
    } | more


class AuthServer:
    """Answers with what `answer` makes of a question: JSON, bytes, or a status and bytes."""

    def __init__(self, answer: Callable[[Asked], Any]) -> None:
        self.answer = answer
        self.asked: queue.Queue[Asked] = queue.Queue()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._reply(self, dict(parse_qsl(urlsplit(self.path).query, True)))

            def do_POST(self) -> None:
                outer._reply(self, json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def _reply(self, handler: BaseHTTPRequestHandler, fields: Asked) -> None:
        asked = {**fields, "method": handler.command, "path": urlsplit(handler.path).path}
        asked["accept"] = handler.headers["accept"]
        self.asked.put(asked)
        found = self.answer(asked)
        status, body = found if isinstance(found, tuple) else (200, found)
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> AuthServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
