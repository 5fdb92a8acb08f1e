"""The monitoring listener over HTTP, of a real server; what is on the pages is shown elsewhere."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Address, nats_peer
from support.authority import Authority
from support.clients.http import Answer, request
from support.live.nats import LiveNats
from support.nats_file import FileServer

from broker import __version__
from broker.protocols.nats.monitoring import limits
from broker.protocols.nats.monitoring.lists import LongPage
from broker.protocols.nats.monitoring.metrics import nats_metrics
from broker.protocols.nats.monitoring.options import ConnzOptions, encode
from broker.server.exposition import metrics_page


@pytest.fixture(scope="module")
def server() -> Iterator[LiveNats]:
    with LiveNats(metrics=lambda nats: metrics_page(lambda: [nats_metrics(nats.pages)])) as server:
        yield server


def get(server: LiveNats, path: str, **query: object) -> Answer:
    return request(server.monitor, "GET", path, **query)


def test_healthz_is_compact(server: LiveNats) -> None:
    answer = get(server, "/healthz")
    assert (answer.status, answer.body) == (200, b'{"status":"ok"}')


def test_healthz_says_what_is_wrong(server: LiveNats) -> None:
    server.server.pages.broken = lambda: "log orders: disk full"
    try:
        plain, detailed = get(server, "/healthz"), get(server, "/healthz", details=1)
    finally:
        server.server.pages.broken = lambda: None
    assert plain.status == 503
    assert plain.json == {"status": "unavailable", "error": "log orders: disk full"}
    assert (detailed.status, detailed.json["status"]) == (503, "error")
    assert detailed.json["errors"][0]["error"] == "log orders: disk full"


@pytest.mark.parametrize("state", ["lame", "starting"])
def test_a_server_that_lets_nobody_in_is_not_well(server: LiveNats, state: str) -> None:
    setattr(server.server, state, True)
    answer = get(server, "/healthz")
    setattr(server.server, state, False)
    assert answer.status == 500
    assert answer.json == {
        "status": "error",
        "error": "failed to be ready for connections after 1ms: server",
    }


def test_varz_says_what_we_are(server: LiveNats) -> None:
    page = get(server, "/varz").json
    assert page["twinwire"] == __version__
    assert page["mem"] > 1_000_000
    assert (page["http_port"], page["https_port"]) == (server.monitor.port, 0)
    assert page["port"] == server.nats.port


def test_requests_are_counted_by_page() -> None:
    with LiveNats() as server:
        for path in ("/healthz", "/subsz", "/subscriptionsz", "/nope", "/", "/raftz", "/connz"):
            get(server, path)
        get(server, "/connz", limit="x")
        counted = get(server, "/varz").json["http_req_stats"]
    assert counted == {"/": 1, "/connz": 1, "/healthz": 1, "/subsz": 2, "/varz": 1}


def test_no_page_is_a_script(server: LiveNats) -> None:
    answer = get(server, "/healthz", callback="jQuery_1.done")
    assert answer.body == b'{"status":"ok"}'
    assert answer.headers["content-type"].startswith("application/json")


def test_only_get_and_head(server: LiveNats) -> None:
    head, whole = request(server.monitor, "HEAD", "/connz"), get(server, "/connz")
    assert (head.status, head.body) == (200, b"")
    assert abs(int(head.headers["content-length"]) - len(whole.body)) < 10  # `now` varies
    assert request(server.monitor, "POST", "/connz", b"{}").status == 405


@pytest.mark.parametrize("path", ["//example.org/varz", "//varz?callback=a", "/a//../varz?x=%0d"])
def test_a_redirect_stays_here(server: LiveNats, path: str) -> None:
    answer = request(server.monitor, "GET", path)
    where = answer.headers.get("location", "/")
    assert where.startswith("/")
    assert not where.startswith("//")


def test_the_front_page_links_the_others(server: LiveNats) -> None:
    answer = get(server, "/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for path in ("/varz", "/connz", "/healthz", "/metrics"):
        assert f'href=".{path}"' in answer.body.decode()


def test_stacks_show_places_and_no_values(server: LiveNats) -> None:
    answer = get(server, "/stacksz")
    assert answer.status == 200
    assert b"monitoring/http.py" in answer.body


def test_a_base_path() -> None:
    with LiveNats("http_base_path: /nats/") as server:
        assert get(server, "/nats/varz").json["http_base_path"] == "/nats"
        assert b'href="./nats/varz"' in get(server, "/nats").body
        assert get(server, "/varz").status == 404
        assert "/varz" in get(server, "/nats/varz").json["http_req_stats"]


def _with_login(address: Address, given: bytes | None) -> int:
    connection = http.client.HTTPConnection(*address, timeout=10)
    headers = {}
    if given is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(given).decode()
    connection.request("GET", "/varz", headers=headers)
    answer = connection.getresponse()
    if answer.status == 401:
        assert answer.getheader("WWW-Authenticate", "").startswith("Basic realm=")
    connection.close()
    return answer.status


def test_a_login_for_the_listener() -> None:
    with LiveNats('twinwire { monitor_user: ops, monitor_password: "p:w" }') as server:
        assert _with_login(server.monitor, b"ops:p:w") == 200
        wrong = (None, b"", b"ops", b"ops:", b"ops:p", b"x:p:w", b"\xff:\xff", b"ops:p:w\n")
        assert {_with_login(server.monitor, given) for given in wrong} == {401}
        connection = http.client.HTTPConnection(*server.monitor, timeout=10)
        connection.request("GET", "/nope", headers={"Authorization": "Basic !!!"})
        assert connection.getresponse().status == 401
        connection.close()


def test_probes_need_no_login() -> None:
    with LiveNats('twinwire { monitor_user: ops, monitor_password: "p:w" }') as server:
        assert get(server, "/healthz").json == {"status": "ok"}
        server.server.lame = True
        for path, status in (("/healthz", 500), ("/healthz?details=1", 500)):
            answer = get(server, path)
            assert (answer.status, answer.json) == (status, {"status": "error"})
        assert get(server, "/healthz/").status == 401


def _https(address: Address, authority: Authority, path: str) -> Any:
    connection = http.client.HTTPSConnection(
        *address, timeout=10, context=ssl.create_default_context(cafile=str(authority.file))
    )
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return json.loads(body)


def test_https_asks_for_no_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    text = f"""
        tls {{ cert_file: "{pair.certificate}", key_file: "{pair.key}",
               ca_file: "{authority.file}", verify: true }}
    """
    with LiveNats(text, settings={"https": ("127.0.0.1", 0)}) as server:
        secure = Address(*server.server.ports["monitor_https"])
        page = _https(secure, authority, "/varz")
        assert (page["http_port"], page["https_port"]) == (server.monitor.port, secure.port)
        assert page["tls_required"]
        assert page["tls_verify"]
        assert get(server, "/healthz").status == 200
    with LiveNats(text, settings={"http": None, "https": ("127.0.0.1", 0)}) as server:
        page = _https(server.monitor, authority, "/varz")
        assert (page["http_port"], page["https_port"]) == (0, server.monitor.port)


async def _encoded(page: LongPage) -> tuple[bytes, int]:
    parts = [part async for part in page.parts()]
    return b"".join(parts), len(parts)


@pytest.mark.parametrize("turn_ns", [0, 10**12])
async def test_a_long_page_lets_the_loop_do_other_work(
    monkeypatch: pytest.MonkeyPatch, turn_ns: int
) -> None:
    monkeypatch.setattr("broker.protocols.nats.monitoring.limits.MONITOR_TURN", turn_ns)
    entries = [{"cid": n, "name": "<\n>", "subs": ["a", {"b": []}]} for n in range(5)]
    head = {"server_id": "N", "limit": 5}
    body, count = await _encoded(LongPage(head, "connections", iter(entries)))
    assert body == encode(head | {"connections": entries})
    assert count == (1 if turn_ns else 6)
    body, _ = await _encoded(LongPage(head, "connections", iter(())))
    assert body == encode(head | {"connections": []})
    body, _ = await _encoded(LongPage(head, "", iter(())))
    assert body == encode(head)


def test_a_long_page_is_written_as_it_is_made(
    server: LiveNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nats_peer(server.nats, {"name": "many"}) as peer:
        peer.send(b"".join(b"SUB long.%d %d\r\n" % (n, n) for n in range(300)))
        peer.ping()
        asked = "/subsz?subs=1&limit=250&offset=50"
        whole = get(server, asked)
        monkeypatch.setattr("broker.protocols.nats.monitoring.limits.MONITOR_TURN", 0)
        monkeypatch.setattr("broker.protocols.nats.monitoring.limits.MONITOR_PIECE", 1_000)
        monkeypatch.setattr("broker.protocols.nats.monitoring.limits.MONITOR_LISTED", 7)
        pieces = get(server, asked)
        connections = get(server, "/connz?subs=detail")
    assert "content-length" in whole.headers
    assert pieces.headers["transfer-encoding"] == "chunked"
    assert pieces.headers["content-type"].startswith("application/json")
    assert pieces.json["total"] == whole.json["total"] >= 300
    assert pieces.json["subscriptions_list"] == whole.json["subscriptions_list"]
    listed = pieces.json["subscriptions_list"]
    assert len({(entry["subject"], entry["sid"]) for entry in listed}) == 250
    assert len(connections.json["connections"][0]["subscriptions_list_detail"]) == 300


def test_long_lists_of_subscriptions_are_cut(server: LiveNats) -> None:
    each, whole = limits.MONITOR_SUBSCRIPTIONS_EACH, limits.MONITOR_SUBSCRIPTIONS_WHOLE
    with nats_peer(server.nats, {"name": "cut"}) as peer:
        peer.send(b"".join(b"SUB cut.%d %d\r\n" % (n, n) for n in range(whole + 100)))
        peer.ping()
        (entry,) = get(server, "/connz?subs=1").json["connections"]
        assert len(entry["subscriptions_list"]) == each
        assert entry["subscriptions"] == whole + 100
        asked = {"subscriptions": True, "limit": whole + 50}
        page = server.ask(lambda nats: nats.pages.page("SUBSZ", asked))
        assert len(page["subscriptions_list"]) == whole
        listed = get(server, f"/subsz?subs=1&limit={whole + 50}").json["subscriptions_list"]
        assert len(listed) == whole + 50
        with_test = get(server, "/subsz?subs=1&test=cut.7").json
        assert with_test["total"] == 1


def test_a_page_without_connections(server: LiveNats) -> None:
    body = get(server, "/connz").body
    assert body.endswith(b'"connections": []\n}')


def test_filtering_by_subject(server: LiveNats) -> None:
    with nats_peer(server.nats, {"name": "lit"}) as one, nats_peer(server.nats) as two:
        one.send(b"SUB orders.new 1\r\n")
        one.ping()
        two.send(b"SUB orders.* 1\r\n")
        two.ping()

        def names(subject: str) -> list[str]:
            asked = ConnzOptions(acc="$G", filter_subject=subject)
            page = server.ask(lambda nats: nats.pages.connz(asked).whole())
            return [entry.get("name", "") for entry in page["connections"]]

        assert names("orders.new") == ["lit", ""]
        assert names("orders.old") == [""]
        assert names("*.new") == ["lit", ""]
        assert names("other.>") == []
        answer = get(server, "/connz", filter_subject="a")
        assert (answer.status, answer.body) == (
            400,
            b"filter by subject only valid with account filtering",
        )


def test_the_command_has_metrics_too(tmp_path: Path) -> None:
    server = FileServer(tmp_path, "")
    try:
        text = request(server.monitor, "GET", "/metrics").body.decode()
    finally:
        server.close()
    assert "gnatsd_varz_connections{" in text
