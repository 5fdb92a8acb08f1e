"""Who gets into the bulk API: tokens, rights, patterns, certificates, and reading them again."""

from __future__ import annotations

import signal
import ssl
from pathlib import Path

import pytest
from conftest import StartBroker
from raw.test_bulk_ranges import numbered, publish
from support import Server
from support.authority import Authority
from support.clients.bulk import BulkClient

pytestmark = pytest.mark.only_ours

TOKENS = """
# who       token   rights           topics
reader      r-1     read
narrow      n-1     read,hold        a.* b.>
holder      h-1     hold,read
writer      w-1     write
"""


@pytest.fixture
def server(start_broker: StartBroker, tmp_path: Path) -> Server:
    file = tmp_path / "tokens"
    file.write_text(TOKENS)
    found = start_broker({"bulk": {"token_file": str(file)}, "storage": {"sync": "always"}})
    for topic in ("a.x", "a.x.y", "b.x.y", "c"):
        publish(found, topic, numbered(3))
    return found


def status(server: Server, token: str, path: str, method: str = "GET", body: object = None) -> int:
    with BulkClient(server.bulk, token) as bulk:
        answer = bulk.ask(method, path, body)
        if answer.status >= 400:
            assert answer.json.keys() == {"error"}
        if answer.status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
        return answer.status


def test_without_a_token_there_is_nothing(server: Server) -> None:
    for path in ("topics", "range/c?start=1", "readers", "nothing", "topics/x"):
        assert status(server, "", path) == 401
        assert status(server, "r-2", path) == 401
    with BulkClient(server.bulk) as bulk:
        for value in ("", "Bearer", "Bearer ", "Basic cjpyLTE=", "r-1", "Bearer r-1 r-1"):
            headers = {"Authorization": value}
            assert bulk.ask("GET", "topics", headers=headers).status == 401
        assert bulk.ask("GET", "topics", headers={"Authorization": "bearer r-1"}).status == 200


def test_rights(server: Server) -> None:
    offsets = {"topics": {"c": {"time_ns": 0}}}
    assert status(server, "r-1", "topics") == 200
    assert status(server, "r-1", "range/c?start=1") == 200
    assert status(server, "r-1", "offsets", "POST", offsets) == 200
    assert status(server, "w-1", "topics") == 403
    assert status(server, "w-1", "range/c?start=1") == 403
    assert status(server, "w-1", "offsets", "POST", offsets) == 403
    assert status(server, "w-1", "readers") == 403


def test_patterns(server: Server) -> None:
    for topic, expected in (("a.x", 200), ("b.x.y", 200), ("a.x.y", 403), ("c", 403), ("no", 403)):
        assert status(server, "n-1", f"range/{topic}?start=1") == expected
    with BulkClient(server.bulk, "n-1") as bulk:
        found = bulk.ask("GET", "topics").json["topics"]
        assert [topic["topic"] for topic in found] == ["a.x", "b.x.y"]
        assert bulk.ask("GET", "topics", subscribe="c").json["topics"] == []
        assert bulk.ask("POST", "offsets", {"topics": {"c": {"time_ns": 0}}}).status == 403


def test_holding_takes_the_right_to_hold(server: Server) -> None:
    with BulkClient(server.bulk, "r-1") as bulk:
        at = {"seq": 1, "incarnation": bulk.topic("c")["incarnation"]}
    own = {"positions": {"c": at}, "hold": True}
    progress = {"positions": {"c": at}}
    assert status(server, "r-1", "readers/r", "PUT", own) == 403
    assert status(server, "r-1", "readers/r", "PUT", progress) == 200
    assert status(server, "r-1", "readers/r", "DELETE") == 200
    assert status(server, "n-1", "readers/r", "PUT", own) == 403
    assert status(server, "h-1", "readers/r", "PUT", own) == 200
    assert status(server, "r-1", "readers/r", "PUT", {"hold": False}) == 403
    assert status(server, "n-1", "readers/r", "PUT", {}) == 403
    assert status(server, "n-1", "readers/r", "DELETE") == 403
    with BulkClient(server.bulk, "n-1") as bulk:
        assert bulk.ask("GET", "readers").json["readers"][0]["positions"] == {}
    assert status(server, "h-1", "readers/r", "DELETE") == 200


def test_tokens_are_read_again(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("new n-2 read\n")
    assert status(server, "r-1", "topics") == 200
    server.signal(signal.SIGHUP)
    server.await_log("tokens reloaded")
    assert (status(server, "r-1", "topics"), status(server, "n-2", "topics")) == (401, 200)
    file.write_text("broken\n")
    server.signal(signal.SIGHUP)
    server.await_log("tokens not reloaded")
    assert status(server, "n-2", "topics") == 200
    assert "n-2" not in server.log_since()


def test_certificates(start_broker: StartBroker, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    own, client, stranger = (
        authority.issue("own"),
        authority.issue("client"),
        other.issue("stranger"),
    )
    config = {
        "tls_cert": str(own.certificate),
        "tls_key": str(own.key),
        "tls_client_ca": str(authority.file),
    }
    server = start_broker({"bulk": config})
    context = ssl.create_default_context(cafile=str(authority.file))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        BulkClient(server.bulk, context=context).ask("GET", "topics")
    context.load_cert_chain(stranger.certificate, stranger.key)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        BulkClient(server.bulk, context=context).ask("GET", "topics")
    context.load_cert_chain(client.certificate, client.key)
    for _ in range(9):
        publish(server, "t", [b"x" * 900_000])
    with BulkClient(server.bulk, context=context) as bulk:
        bulk.await_next("t", 10)
        frames = bulk.all_of("t", 1, 10, max_bytes=64 << 20)
        assert sum(len(frame.records) for frame in frames) == 9
        again = authority.issue("again")
        for kind in ("certificate", "key"):
            getattr(own, kind).write_bytes(getattr(again, kind).read_bytes())
        server.signal(signal.SIGHUP)
        server.await_log("certificates reloaded")
        assert bulk.ask("GET", "topics").status == 200, "who is here stays"
    with BulkClient(server.bulk, context=context) as bulk:
        assert bulk.ask("GET", "topics").status == 200
        shown = bulk.link.sock.getpeercert(binary_form=True)
    assert shown == ssl.PEM_cert_to_DER_cert(again.certificate.read_text())
