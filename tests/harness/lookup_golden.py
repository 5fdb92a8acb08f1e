"""Transcripts of nsqlookupd: what is sent, and what came back from the original.

TCP: the bytes of one connection, then its writing side is closed and all replies are read.
HTTP: requests in order; status, the headers that matter and the body of each. Lists without an
order are sorted, what differs from run to run is starred.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from harness.http import request
from harness.lookup import LookupProcess
from harness.peer import RawPeer

FOLDER = Path(__file__).parents[1] / "wire" / "nsqlookupd"
HEADERS = ("content-type", "x-nsq-content-type", "allow", "location")
STARRED = {"tcp_port", "http_port", "hostname", "remote_address", "id", "last_update"}

Transcript = dict[str, Any]


def load(name: str) -> dict[str, Transcript]:
    """Scenario -> what is sent and what comes back."""
    found: dict[str, Transcript] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def star(value: Any) -> Any:
    """The same without what no two runs have in common."""
    if isinstance(value, dict):
        return {k: "*" if k in STARRED else star(v) for k, v in value.items()}
    if isinstance(value, list):
        return sorted((star(v) for v in value), key=str)
    return value


def play_tcp(server: LookupProcess, send: str) -> list[Any]:
    """Replies to `send` (one character per byte); those that are JSON objects parsed."""
    with RawPeer(server.tcp) as peer:
        peer.send(send.encode("latin-1"))
        with contextlib.suppress(OSError):  # it may have hung up already
            peer.half_close()
        data = peer.read_to_eof()
    replies: list[Any] = []
    while data:
        size = int.from_bytes(data[:4], "big")
        reply, data = data[4 : 4 + size], data[4 + size :]
        assert len(reply) == size
        shown = reply.decode("latin-1")
        replies.append(star(json.loads(reply)) if shown.startswith("{") else shown)
    return replies


def play_http(server: LookupProcess, requests: list[str]) -> list[Any]:
    """Answers to "METHOD PATH" lines."""
    answers = []
    for line in requests:
        method, _, path = line.partition(" ")
        answer = request(server.http, method, path)
        headers = {k: answer.headers[k] for k in HEADERS if k in answer.headers}
        body: Any = answer.body.decode()
        if headers.get("content-type", "").startswith("application/json") and body:
            body = star(json.loads(body))
        answers.append([answer.status, headers, body])
    return answers
