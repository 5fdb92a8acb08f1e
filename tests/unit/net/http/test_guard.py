"""Which requests a listener answers: Host, Origin, Sec-Fetch-Site."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from broker.net.http.config import HttpConfig
from broker.net.http.guard import HttpGuard


def refused(guard: HttpGuard, method: str = "GET", **headers: str) -> int | None:
    """The status of the refusal; None when it is answered. `_` in names stands for `-`."""
    given = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    response = guard.refusal(method, CIMultiDictProxy(given))
    return None if response is None else response.status


def guard(
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    **flags: Any,
) -> HttpGuard:
    return HttpGuard(HttpConfig(hosts, origins), names, **flags)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", None),
        ("127.0.0.1:4151", None),
        ("10.1.2.3:80", None),
        ("[::1]:4151", None),
        ("[fe80::1]", None),
        ("localhost:4151", None),
        ("LocalHost.", None),
        (f"{socket.gethostname()}:4151", None),
        ("broker.example:4151", None),
        ("evil.example", 421),
        ("evil.example:4151", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("xbroker.example", 421),
        ("[evil", 421),
    ],
)
def test_hosts_on_loopback(host: str, status: int | None) -> None:
    assert refused(guard(names=("Broker.example",), loopback=True), Host=host) == status


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ("broker.example", "BROKER.example.:4151", None),
        ("*.example", "a.b.example", None),
        ("*.example", "example", 421),
        ("*.example", "evilexample", 421),
        ("*", "evil.example", None),
    ],
)
def test_allowed_hosts(allowed: str, host: str, status: int | None) -> None:
    assert refused(guard((allowed,), loopback=True), Host=host) == status


def test_names_of_a_listener_that_others_reach_are_not_known() -> None:
    assert refused(guard(), Host="any.example") is None
    assert refused(guard(("broker.example",)), Host="any.example") == 421


def test_programs_without_a_host_are_answered() -> None:
    assert refused(guard(loopback=True)) is None


def test_one_of_two_hosts_is_enough_to_refuse() -> None:
    headers = CIMultiDict([("Host", "127.0.0.1"), ("Host", "evil.example")])
    response = guard(loopback=True).refusal("GET", CIMultiDictProxy(headers))
    assert response is not None
    assert response.status == 421


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:4151", None),
        ("https://127.0.0.1:4151", None),  # a proxy speaks TLS for us
        ("http://127.0.0.1:3000", 403),
        ("http://127.0.0.1", 403),
        ("http://evil.example", 403),
        ("https://dash.example", None),
        ("http://dash.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_origins(method: str, origin: str, status: int | None) -> None:
    rule = guard(origins=("https://Dash.example",), loopback=True)
    assert refused(rule, method, Host="127.0.0.1:4151", Origin=origin) == status


def test_a_port_that_goes_without_saying() -> None:
    assert refused(guard(), Host="b.example:443", Origin="https://b.example") is None
    assert refused(guard(), Host="b.example", Origin="https://b.example") is None
    assert refused(guard(), Host="b.example:443", Origin="http://b.example") == 403
    assert refused(guard(), Origin="http://b.example") == 403


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-origin", None), ("none", None)]
)
def test_requests_without_an_origin(site: str, status: int | None) -> None:
    assert refused(guard(), Host="b.example", Sec_Fetch_Site=site) == status


@pytest.mark.parametrize(
    ("method", "mode", "dest", "status"),
    [
        ("GET", "navigate", "document", None),
        ("HEAD", "navigate", "document", None),
        ("POST", "navigate", "document", 403),
        ("GET", "navigate", "iframe", 403),
        ("GET", "no-cors", "image", 403),
        ("GET", "no-cors", "script", 403),
        ("GET", "no-cors", "document", 403),
    ],
)
def test_a_link_on_another_site_is_followed(
    method: str, mode: str, dest: str, status: int | None
) -> None:
    given = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": dest}
    assert refused(guard(loopback=True), method, Host="127.0.0.1:8222", **given) == status
    evil = {**given, "Origin": "http://evil.example"}
    assert refused(guard(loopback=True), method, Host="127.0.0.1:8222", **evil) == 403
    assert refused(guard(loopback=True), method, Host="evil.example", **given) == 421


def test_public_pages_may_be_read_by_other_sites() -> None:
    public = guard(public=True)
    assert refused(public, Host="b.example", Origin="https://other.example") is None
    assert refused(public, Host="b.example", Sec_Fetch_Site="cross-site") is None
    assert refused(public, "POST", Host="b.example", Origin="https://other.example") == 403


@pytest.mark.parametrize("rule", [guard(public=True, loopback=True), guard(("b",), public=True)])
def test_not_where_nobody_else_or_only_known_names_reach_them(rule: HttpGuard) -> None:
    assert refused(rule, Host="127.0.0.1", Sec_Fetch_Site="cross-site") == 403
