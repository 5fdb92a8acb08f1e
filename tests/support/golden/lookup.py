"""Transcripts of nsqlookupd: requests, and the answers of the original.

TCP: the bytes of one connection, then its writing side is closed and all replies are read.
HTTP: requests in order; status, the headers that matter and the body of each. Unordered lists
are sorted, values that differ from run to run are `*`.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from support.clients.http import request
from support.clients.lookup import LookupProcess
from support.clients.peer import RawPeer

FOLDER = Path(__file__).parents[2] / "golden" / "nsqlookupd"
HEADERS = ("content-type", "x-nsq-content-type", "allow", "location")
STARRED = {"tcp_port", "http_port", "hostname", "remote_address", "id", "last_update"}

Transcript = dict[str, Any]


def load(name: str) -> dict[str, Transcript]:
    """Scenario -> requests and answers."""
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
