"""The nats command line reads our pages, through the system account."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support.golden.monitor import CONFIG, Traffic
from support.live.nats import LiveNats

pytestmark = pytest.mark.skipif(shutil.which("nats") is None, reason="nats is not on PATH")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveNats]:
    with LiveNats(CONFIG) as server:
        traffic = Traffic(server.nats, server.monitor)
        yield server
        traffic.close()


def nats(server: LiveNats, *words: str) -> str:
    """What a command of the system account's user prints."""
    where = ["-s", f"nats://{server.nats}", "--user", "s", "--password", "spw", "--timeout", "3s"]
    done = subprocess.run(
        ["nats", *where, *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def data(server: LiveNats, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(nats(server, "server", "request", *words))["data"]
    return found


def test_variables(server: LiveNats) -> None:
    page = data(server, "variables")
    assert page["server_name"] == "golden"
    assert page["in_msgs"] >= 3


def test_connections(server: LiveNats) -> None:
    page = data(server, "connections", "--filter-account", "A", "--subscriptions")
    names = {entry["name"]: entry for entry in page["connections"]}
    assert set(names) == {"one", "three"}
    gone = data(server, "connections", "--filter-state", "closed", "--filter-user", "b")
    assert [entry["reason"] for entry in gone["connections"]] == ["Protocol Violation"]
    sorted_page = data(server, "connections", "--sort", "msgs_to", "--limit", "1")
    assert [entry["name"] for entry in sorted_page["connections"]] == ["one"]


def test_connections_by_subject(server: LiveNats) -> None:
    words = ["--filter-account", "A", "--filter-subject", "deep.a"]
    page = data(server, "connections", *words)
    assert [entry["name"] for entry in page["connections"]] == ["three"]


def test_subscriptions(server: LiveNats) -> None:
    page = data(server, "subscriptions", "--detail", "--filter-account", "A")
    shown = {entry["subject"] for entry in page["subscriptions_list"]}
    assert {"foo.*", "bar", "deep.>"} <= shown


def test_other_pages(server: LiveNats) -> None:
    assert data(server, "routes")["routes"] == []
    assert data(server, "gateways")["outbound_gateways"] == {}
    assert data(server, "leafnodes")["leafs"] == []
    assert set(data(server, "accounts")["accounts"]) == {"$G", "A", "B", "SYS"}
    detail = data(server, "accounts", "--account", "A")["account_detail"]
    assert detail["mappings"]["old.*"][-1]["weight"] == 100
    assert data(server, "jetstream")["disabled"]


def test_reports(server: LiveNats) -> None:
    assert "golden" in nats(server, "server", "list")
    assert "golden" in nats(server, "server", "info", "golden")
    report = nats(server, "server", "report", "connections", "--json")
    assert {entry.get("name") for entry in json.loads(report)} >= {"one", "two", "three"}
    accounts = json.loads(nats(server, "server", "report", "accounts", "--json"))
    assert {entry["account"] for entry in accounts} >= {"A", "B"}


def test_check(server: LiveNats) -> None:
    assert nats(server, "server", "check", "connection").startswith("OK")
    assert "OK" in nats(server, "server", "check", "server", "--name", "golden")
