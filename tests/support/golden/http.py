"""Recorded HTTP answers: one JSON object per line, volatile values masked.

    {"ask": "POST /pub?topic=${uniq}", "body": "x", "says": [200, {"content-type": ...}, "OK"]}

`differs` is the reason why Twinwire's answer (`ours`, in the form of `says`) differs. Requests are
sent in the order of the file; `${uniq}` is replaced with a new name.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support.clients.http import request
from support.servers.processes import Address

HEADERS = ("content-type", "x-nsq-content-type", "allow", "location")
_VOLATILE = {"start_time", "hostname", "broadcast_address", "tcp_port", "http_port"}
_VOLATILE |= {"memory", "backend_depth"}
_TEXT = (
    (r"built w/\S+\)", "built w/*)"),
    (r"start_time \S+", "start_time *"),
    (r"uptime \S+", "uptime *"),
    (r"be-depth: \d+ *", "be-depth: * "),
    (r"(?m)^(   (?:heap|gc|next)_\w+ *\t)\d+", r"\1*"),
)


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "*" if k in _VOLATILE else _masked(v) for k, v in value.items()}
    return [_masked(v) for v in value] if isinstance(value, list) else value


def load(path: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def play(entry: dict[str, Any], address: Address, uniq: str) -> list[Any]:
    """Make one request; [status, headers, body] as they are recorded."""
    method, _, path = entry["ask"].replace("${uniq}", uniq).partition(" ")
    body = entry.get("body", "").encode("latin-1") * entry.get("times", 1)
    answer = request(address, method, path, body)
    headers = {k: v.replace(uniq, "${uniq}") for k, v in answer.headers.items() if k in HEADERS}
    text = answer.body.decode("latin-1").replace(uniq, "${uniq}")
    if headers.get("content-type", "").startswith("application/json") and text:
        return [answer.status, headers, _masked(json.loads(text))]
    for pattern, mask in _TEXT:
        text = re.sub(pattern, mask, text)
    return [answer.status, headers, text]
