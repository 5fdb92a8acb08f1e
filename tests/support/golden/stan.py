"""Recorded pages of NATS Streaming: the traffic before them, and the masks.

{"ask": "/streaming/channelsz?subs=1", "says": [200, {"content-type": ...}, {...}]}
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support.clients.http import request
from support.servers.processes import Address
from support.stan import wire
from support.stan.client import StanClient, StanServer

FILE = Path(__file__).parents[2] / "golden" / "stan" / "monitor.jsonl"
CONFIG = """
streaming {
  id: golden
  store_limits {
    max_channels: 7, max_age: "1h", max_msgs: 50
    channels {
      "b.*": {max_subs: 3}, "b.c": {max_bytes: 1MB, max_inactivity: "0s"}, ">": {max_msgs: 9}
    }
  }
}
"""
HEADERS = ("content-type", "access-control-allow-origin", "x-content-type-options")
_VOLATILE = frozenset(
    (
        *("server_id", "go", "now", "start_time", "uptime", "open_fds", "max_fds"),
        *("inbox", "ack_inbox", "hb_inbox"),
        "in_bytes",  # guids have the number of the process
    )
)


def load() -> list[dict[str, Any]]:
    """The recorded answers."""
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def masked(value: Any) -> Any:
    """The same with volatile values replaced."""
    if isinstance(value, list):
        return [masked(one) for one in value]
    if not isinstance(value, dict):
        return value
    shown = {
        key: ("*" if inner else inner) if key in _VOLATILE else masked(inner)
        for key, inner in value.items()
    }
    if isinstance(subs := shown.get("subscriptions"), list):
        subs.sort(key=json.dumps)  # groups come in any order
    return shown


def play(ask: str, address: Address) -> list[Any]:
    """One request; [status, headers, body] as they are recorded."""
    answer = request(address, "GET", ask)
    headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    text = answer.body.decode()
    found = re.fullmatch(r"(\w+)\((.*)\)", text, re.DOTALL)
    if found:
        return [answer.status, headers, [found[1], masked(json.loads(found[2]))]]
    body = masked(json.loads(text)) if text[:1] == "{" else text
    return [answer.status, headers, body]


class Traffic:
    """Two clients that stay, one that is gone; subscriptions of every kind."""

    def __init__(self, server: StanServer) -> None:
        self.one = StanClient(server, "one", cluster="golden")
        self.two = StanClient(server, "two", cluster="golden")
        gone = StanClient(server, "gone", cluster="golden")
        one, two = self.one, self.two
        plain = one.subscribe("a", max_in_flight=2, ack_wait=60)
        one.fill("a", 2)
        assert plain.take(2) == [1, 2]
        one.fill("a", 10)
        two.publish("b.c", b"some data", b"more", reply="r")
        durable = two.subscribe("b.c", durable="d", start=wire.FIRST, ack_wait=60)
        assert durable.take(1, ack=True) == [1]
        assert durable.take(1) == [2]
        offline = gone.subscribe("b.c", durable="off", start=wire.FIRST, ack_wait=60)
        assert offline.take(2) == [1, 2]
        group = one.subscribe("b.d", queue="q", ack_wait=60)
        one.fill("b.d", 3)
        assert group.take(3, ack=True) == [1, 2, 3]
        last = gone.subscribe("empty", queue="q", durable="dq", max_in_flight=5)
        assert not last.error
        assert gone.close() == ""
        gone.peer.close()
        two.subscribe("b.d", queue="q", durable="dq")
        one.quiet()
        two.quiet()

    def close(self) -> None:
        self.one.peer.close()
        self.two.peer.close()
