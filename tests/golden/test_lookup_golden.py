"""Transcripts of nsqlookupd: ours answers as the original did; the original still does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.lookup import LookupProcess, make_lookup
from support.golden.lookup import load, play_http, play_tcp

TCP, HTTP = load("tcp"), load("http")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookupProcess]:
    server = make_lookup(tmp_path_factory.mktemp("lookup"))
    server.start()
    yield server
    server.close()


@pytest.mark.parametrize("title", TCP)
def test_tcp(shared: LookupProcess, title: str) -> None:
    assert play_tcp(shared, TCP[title]["send"]) == TCP[title]["back"]


@pytest.mark.parametrize("title", HTTP)
def test_http(tmp_path: Path, title: str) -> None:
    server = make_lookup(tmp_path)
    server.start()
    try:
        assert play_http(server, HTTP[title]["send"]) == HTTP[title]["back"]
    finally:
        server.close()
