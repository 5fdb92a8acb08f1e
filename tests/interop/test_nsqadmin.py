"""The original nsqadmin on a nsqlookupd and two nodes: our broker with ours, or the originals."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Server
from support.clients.http import Answer, nsq_channel, nsq_topic, request
from support.clients.lookup import LookupProcess, eventually, make_lookup
from support.servers.processes import Address, _Process

pytestmark = [
    pytest.mark.skipif(shutil.which("nsqadmin") is None, reason="not on PATH: nsqadmin"),
    pytest.mark.only_ours,  # the originals of this harness know no nsqlookupd
]


class Admin:
    """nsqadmin, its nsqlookupd and the nodes it finds by it."""

    def __init__(self, lookup: LookupProcess, nodes: list[Server], process: _Process) -> None:
        self.lookup = lookup
        self.nodes = nodes
        process.spawn(
            ["nsqadmin", "--http-address=127.0.0.1:0", f"--lookupd-http-address={lookup.http}"]
        )
        eventually(lambda: "HTTP: listening on" in process.output())
        found = re.search(r"HTTP: listening on (\S+)", process.output())
        assert found is not None
        self.address = Address.parse(found[1])

    def ask(self, method: str, path: str, **body: object) -> Answer:
        data = json.dumps(body).encode() if body else None
        return request(self.address, method, path, data)

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.json


@pytest.fixture
def admin(tmp_path: Path, start_broker: Callable[..., Server]) -> Iterator[Admin]:
    lookup = make_lookup(tmp_path / "lookup", {"broadcast_address": "127.0.0.1"})
    process = _Process(tmp_path / "nsqadmin.log")
    try:
        lookup.start()
        config = {"nsqlookupd_tcp_addresses": [str(lookup.tcp)], "broadcast_address": "127.0.0.1"}
        nodes = [start_broker({"nsq": config}) for _ in range(2)]
        eventually(lambda: len(lookup.get("/nodes")["producers"]), 2)
        yield Admin(lookup, nodes, process)
    finally:
        if process.child is not None:
            process.child.kill()
            process.child.wait()
        lookup.close()


def test_create_show_act_delete(admin: Admin) -> None:
    assert admin.ask("POST", "/api/topics", topic="t", channel="c").status == 200
    for node in admin.nodes:  # one action of nsqadmin reaches the nodes of a topic
        assert request(node.nsq_http, "POST", "/pub", b"m", topic="t").status == 200
        eventually(lambda n=node: nsq_channel(n.nsq_http, "t", "c") is not None)
    eventually(lambda: len(admin.lookup.get("/lookup", topic="t")["producers"]), 2)
    assert admin.get("/api/topics") == {"topics": ["t"], "message": ""}

    page = admin.get("/api/topics/t")
    assert page["message"] == ""
    assert (len(page["nodes"]), page["message_count"], page["depth"]) == (2, 2, 0)
    assert [c["channel_name"] for c in page["channels"]] == ["c"]
    page = admin.get("/api/topics/t/c")
    assert (page["depth"], len(page["nodes"]), page["message"]) == (2, 2, "")

    for action, paused in (("pause", True), ("unpause", False)):
        assert admin.ask("POST", "/api/topics/t/c", action=action).status == 200
        for node in admin.nodes:
            assert nsq_channel(node.nsq_http, "t", "c")["paused"] is paused
        assert admin.ask("POST", "/api/topics/t", action=action).status == 200
        for node in admin.nodes:
            assert nsq_topic(node.nsq_http, "t")["paused"] is paused
    assert admin.ask("POST", "/api/topics/t/c", action="empty").status == 200
    assert admin.get("/api/topics/t/c")["depth"] == 0
    assert "stats" in admin.get("/api/counter")

    assert admin.ask("DELETE", "/api/topics/t/c").status == 200
    for node in admin.nodes:
        assert nsq_channel(node.nsq_http, "t", "c") is None
    assert admin.ask("DELETE", "/api/topics/t").status == 200
    for node in admin.nodes:
        assert nsq_topic(node.nsq_http, "t") is None
    eventually(lambda: admin.get("/api/topics")["topics"], None)  # nsqadmin says null for none


def test_nodes_and_tombstone(admin: Admin) -> None:
    for node in admin.nodes:
        assert request(node.nsq_http, "POST", "/topic/create", topic="t").status == 200
    eventually(lambda: len(admin.lookup.get("/lookup", topic="t")["producers"]), 2)
    found = admin.get("/api/nodes")["nodes"]
    assert sorted(n["http_port"] for n in found) == sorted(n.nsq_http.port for n in admin.nodes)
    assert all(n["topics"] == [{"topic": "t", "tombstoned": False}] for n in found)
    gone, stays = admin.nodes
    page = admin.get(f"/api/nodes/{gone.nsq_http}")
    assert [t["topic_name"] for t in page["topics"]] == ["t"]
    assert admin.ask("DELETE", f"/api/nodes/{gone.nsq_http}", topic="t").status == 200
    assert nsq_topic(gone.nsq_http, "t") is None
    named = admin.lookup.get("/lookup", topic="t")["producers"]
    assert [p["http_port"] for p in named] == [stays.nsq_http.port]


def test_a_topic_without_producers_is_inactive(admin: Admin) -> None:
    assert admin.ask("POST", "/api/topics", topic="orphan", channel="c").status == 200
    assert admin.get("/api/topics?inactive=true")["topics"] == {"orphan": ["c"]}
    assert admin.ask("DELETE", "/api/topics/orphan").status == 200
    assert admin.get("/api/topics?inactive=true")["topics"] == {}
