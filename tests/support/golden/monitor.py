"""Recorded answers of the monitoring pages: the traffic before them, and the masks.

    {"ask": "/connz?auth=1", "says": [200, {"content-type": ...}, {"server_id": "*", ...}]}

JSON keeps the order of its keys. Values that differ from run to run are "*", and so are counts of
the server's own subscriptions, which differ. `differs` is the reason why Twinwire's answer, `ours`,
differs.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from support.clients.http import Answer, request
from support.clients.peer import RawPeer, nats_peer
from support.servers.processes import START_DEADLINE_S, Address

FILE = Path(__file__).parents[2] / "golden" / "nats" / "monitor.jsonl"
CONFIG = """
server_name: golden
max_subscriptions: 100
server_tags: ["region:eu", "Rack:1"]
accounts {
  A {
    users: [{user: a, password: apw}, {user: b, password: bpw, permissions: {publish: "x.>"}}]
    exports: [
      {service: "svc.echo", accounts: [B], response_type: stream}
      {stream: "pub.>"}
    ]
    mappings: {"old.*": [
      {destination: "new.$1", weight: 60%}, {destination: "newer.$1", weight: 30%}
    ]}
  }
  B {
    users: [{user: c, password: cpw}]
    imports: [
      {stream: {account: A, subject: "pub.>"}, prefix: froma}
      {service: {account: A, subject: "svc.echo"}, to: "echo"}
    ]
  }
  SYS { users: [{user: s, password: spw}] }
}
system_account: SYS
"""
HEADERS = ("content-type", "access-control-allow-origin", "x-content-type-options", "location")
_VOLATILE = frozenset(
    (
        "server_id",
        "now",
        "start",
        "last_activity",
        "stop",
        "update_time",
        "config_digest",
        "config_load_time",
        "uptime",
        "idle",
        "rtt",
        "mem",
        "cpu",
        "cores",
        "gomaxprocs",
        "go",
        "version",
        "port",
        "http_port",
        "cid",
        "pending_bytes",
        "total_connections",
        "num_cache",
        "num_inserts",
        "num_removes",
        "num_matches",
        "cache_hit_rate",
        "max_fanout",
        "avg_fanout",
    )
)
_OWN_SUBS = frozenset(("num_subscriptions", "subscriptions"))  # outside of /connz
_UNORDERED = frozenset(
    (
        "subscriptions_list",
        "subscriptions_list_detail",
        "exports",
        "imports",
        "accounts",
        "account_statz",
    )
)


def load() -> list[dict[str, Any]]:
    """The recorded answers."""
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def masked(value: Any, *, connz: bool) -> Any:
    """The same with volatile values replaced, and unordered lists sorted."""
    if isinstance(value, list):
        return [masked(v, connz=connz) for v in value]
    if not isinstance(value, dict):
        return value
    shown = {}
    for key, inner in value.items():
        if key in _VOLATILE or (key in _OWN_SUBS and not connz):
            shown[key] = "" if inner == "" else "*" if inner else inner
            if isinstance(inner, int | float):
                shown[key] = "*"
            continue
        shown[key] = masked(inner, connz=connz)
        if key in _UNORDERED and isinstance(inner, list):
            shown[key] = sorted(shown[key], key=json.dumps)
    return shown


def play(ask: str, address: Address, method: str = "GET") -> list[Any]:
    """One request; [status, headers, body] as they are recorded."""
    answer = request(address, method, ask)
    headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    return [answer.status, headers, _body(ask, answer)]


def _body(ask: str, answer: Answer) -> Any:
    text = answer.body.decode()
    found = re.fullmatch(r"(\w+)\((.*)\)", text, re.DOTALL)
    if found:
        return [found[1], masked(json.loads(found[2]), connz=ask.startswith("/connz"))]
    if answer.status == 301:
        return ""
    if text[:1] in "{[":
        return masked(json.loads(text), connz=ask.startswith("/connz"))
    return text


class Traffic:
    """Known clients, three of whom stay and three of whom are gone."""

    def __init__(self, nats: Address, monitor: Address) -> None:
        one = {"user": "a", "pass": "apw", "name": "one", "lang": "go", "version": "1.2.3"}
        self.stay = [nats_peer(nats, one)]
        self.stay[0].send(b"SUB foo.* 1\r\nSUB bar q 2\r\nUNSUB 2 5\r\n")
        self.stay[0].ping()
        self.stay.append(nats_peer(nats, {"user": "c", "pass": "cpw", "name": "two"}))
        self.stay.append(nats_peer(nats, {"user": "a", "pass": "apw", "name": "three"}))
        self.stay[2].send(b"SUB deep.> 7\r\n" + b"PUB foo.x 2\r\nhi\r\n" * 3)
        self.stay[2].ping()
        self.stay[0].expect(b"MSG foo.x 1 2\r\nhi\r\n" * 3)
        with RawPeer(nats) as refused:
            refused.read_line()
            refused.send(b'CONNECT {"user":"a","pass":"no"}\r\n')
            refused.read_to_eof()
        with nats_peer(nats, {"user": "b", "pass": "bpw", "name": "four"}) as wrong:
            wrong.send(b"SUB w 1\r\nHELO\r\n")
            wrong.read_to_eof()
        with nats_peer(nats, {"user": "c", "pass": "cpw", "name": "five"}) as gone:
            gone.half_close()
            gone.read_to_eof()
        deadline = time.monotonic() + START_DEADLINE_S
        while request(monitor, "GET", "/connz", state="closed").json["total"] < 3:
            assert time.monotonic() < deadline, "connections that ended are not shown"

    def close(self) -> None:
        for peer in self.stay:
            peer.close()
