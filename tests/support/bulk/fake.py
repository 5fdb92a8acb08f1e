"""A fake bulk API whose answers the test chooses, and a log for it."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from support.clients.frames import LOG_ID, frame

INCARNATION = LOG_ID.hex()


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """A response. `cut`: send only this many bytes of the body, and close the connection."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    drop: bool = False  # hang up without any answer


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    """A response with JSON. Headers are keywords, with underscores instead of dashes."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(status, json.dumps(value).encode(), named)


class FakeBulkApi:
    """A server that answers each request with `answer(request)`. `requests` has all of them."""

    def __init__(
        self, answer: Callable[[Request], Answer], context: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                fake.connections += 1
                super().setup()

            def serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                url = urlsplit(self.path)
                query = {k: v[0] for k, v in parse_qs(url.query).items()}
                headers = {k.lower(): v for k, v in self.headers.items()}
                body = self.rfile.read(length)
                request = Request(self.command, unquote(url.path), query, headers, body)
                fake.requests.append(request)
                self._send(answer(request))

            do_GET = do_POST = do_PUT = do_DELETE = serve  # noqa: N815

            def _send(self, made: Answer) -> None:
                if not made.drop:
                    self.send_response(made.status)
                    for name, value in made.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(made.body)))
                    self.end_headers()
                    self.wfile.write(made.body[: made.cut])
                if made.drop or made.cut is not None:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        scheme = "http"
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.address = f"{scheme}://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def script(*answers: Answer) -> Callable[[Request], Answer]:
    """Returns these answers one after the other, and the last one for all further requests."""
    left = list(answers)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]


class FakeLog:
    """A topic `t` with records (seq, raw), served in frames of a given number of records."""

    def __init__(
        self,
        records: dict[int, bytes],
        behind: int,
        *,
        first: int = 1,
        gaps: tuple[tuple[int, int, int], ...] = (),
        per_frame: int = 3,
    ) -> None:
        self.records = records
        self.first, self.next, self.gaps, self.per_frame = first, behind, gaps, per_frame

    def __call__(self, request: Request) -> Answer:
        if request.path == "/bulk/v1/topics":
            row = {"topic": "t", "incarnation": INCARNATION, "first": self.first}
            row |= {"next": self.next, "bytes": 1, "messages": 1, "held_from": None}
            wanted = request.query.get("subscribe", "t").split(",")
            rows = [row] if "t" in wanted else []
            return json_answer({"broker": "b", "broker_id": "id", "partition": 2, "topics": rows})
        if request.path == "/bulk/v1/offsets":
            topics = json.loads(request.body)["topics"]
            found = {"seq": topics["t"]["time_ns"] % 1000, "incarnation": INCARNATION}
            return json_answer({"topics": {"t": found | {"exact": True}}})
        if request.path != "/bulk/v1/range/t":
            return json_answer({"error": "no such topic"}, 404)
        start = int(request.query["start"])
        if start < self.first:
            return json_answer({"error": "trimmed", "first": self.first}, 410)
        if start > self.next:
            return json_answer({"error": "beyond the end", "next": self.next}, 416)
        return Answer(200, self.frame(start, int(request.query["end"])))

    def frame(self, start: int, end: int) -> bytes:
        """The frame that a broker sends for this request."""
        seqs = [seq for seq in self.records if start <= seq < end]
        chosen = seqs[: self.per_frame]
        behind = seqs[len(chosen)] if len(seqs) > len(chosen) else min(end, self.next)
        gaps = [gap for gap in self.gaps if start <= gap[0] < behind]
        records = [self.records[seq] for seq in chosen]
        return frame(records, first=start, behind=behind, gaps=gaps)
