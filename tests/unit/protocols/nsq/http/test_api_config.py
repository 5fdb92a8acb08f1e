"""/config and /debug of nsqd's HTTP API."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from support.live.nsq import on_uvloop, opened

from broker.protocols.nsq.http import debug
from broker.protocols.nsq.http.api import NsqApi


@pytest.fixture(autouse=True)
def levelled() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


async def _asked(
    api: NsqApi, requests: list[tuple[str, str, bytes]]
) -> list[tuple[int, str, str | None]]:
    """(status, text, type) of each."""
    runner = web.AppRunner(api.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    found = []
    try:
        async with aiohttp.ClientSession(base) as session:
            for method, path, body in requests:
                async with session.request(method, path, data=body, allow_redirects=False) as reply:
                    kind = reply.headers.get("Content-Type")
                    found.append((reply.status, await reply.text(), kind))
    finally:
        await runner.cleanup()
    return found


@on_uvloop
async def test_log_level_is_changed_while_it_runs(tmp_path: Path) -> None:
    logging.getLogger().setLevel(logging.INFO)
    async with opened(tmp_path) as listener:
        answers = await _asked(
            NsqApi(listener, lambda: None),
            [
                ("GET", "/config/log_level", b""),
                ("PUT", "/config/log_level", b"DEBUG"),
                ("PUT", "/config/log_level", b"loud"),
                ("PUT", "/config/log_level", b""),
            ],
        )
    assert [(status, text) for status, text, _ in answers] == [
        (200, "2"),
        (200, "1"),
        (400, '{"message":"INVALID_VALUE"}'),
        (413, '{"message":"INVALID_VALUE"}'),
    ]
    assert logging.getLogger().level == logging.DEBUG


@on_uvloop
async def test_lookupd_addresses_are_passed_to_who_follows_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        api, notified = NsqApi(listener, lambda: None), []
        api.options.on_lookupd_addresses = notified.append
        path = "/config/nsqlookupd_tcp_addresses"
        answers = await _asked(
            api,
            [
                ("GET", path, b""),
                ("PUT", path, b'["a:1","b:2"]'),
                ("PUT", path, b"[1]"),
                ("PUT", path, b'"a:1"'),
                ("PUT", path, b"null"),
            ],
        )
    assert [(s, t) for s, t, _ in answers] == [
        (200, "[]"),
        (200, '["a:1","b:2"]'),
        (400, '{"message":"INVALID_VALUE"}'),
        (400, '{"message":"INVALID_VALUE"}'),
        (200, "[]"),
    ]
    assert notified == [["a:1", "b:2"], []]


@on_uvloop
async def test_options_are_shown_as_they_were_given(tmp_path: Path) -> None:
    given = {"tcp_address": ":0", "mem_queue_size": 7, "log_prefix": "[x] "}
    settings = {"given": given, "e2e_processing_latency_percentiles": (1.0, 0.5)}
    keys = (*given, "e2e_processing_latency_percentiles")
    async with opened(tmp_path, settings=settings) as listener:
        answers = await _asked(
            NsqApi(listener, lambda: None, given), [("GET", f"/config/{key}", b"") for key in keys]
        )
    assert [text for _, text, _ in answers] == [":0", "7", "[x] ", "[1,0.5]"]


@on_uvloop
async def test_a_value_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, settings={"max_msg_size": 10}) as listener:
        answers = await _asked(
            NsqApi(listener, lambda: None), [("PUT", "/config/log_level", b"x" * 11)]
        )
    assert answers[0][:2] == (413, '{"message":"INVALID_VALUE"}')


@on_uvloop
async def test_what_stands_for_profiles(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        answers = await _asked(
            NsqApi(listener, lambda: None),
            [
                ("GET", "/debug/pprof/", b""),
                ("GET", "/debug/pprof/goroutine", b""),
                ("POST", "/debug/pprof/heap", b""),
                ("GET", "/debug/pprof/threadcreate", b""),
                ("GET", "/debug/pprof/cmdline", b""),
                ("GET", "/debug/pprof/symbol", b""),
                ("GET", "/debug/pprof/block", b""),
                ("POST", "/debug/pprof/profile?seconds=0", b""),
                ("PUT", "/debug/setblockrate?rate=5", b""),
                ("PUT", "/debug/setblockrate?rate=x", b""),
                ("POST", "/debug/freememory", b""),
                ("GET", "/debug/pprof", b""),
            ],
        )
    codes = [status for status, _, _ in answers]
    assert codes == [200] * 7 + [400, 200, 400, 200, 301]
    assert all(kind == "text/plain; charset=utf-8" for _, _, kind in answers[:8])
    assert "thread MainThread" in answers[1][1]
    assert "allocated blocks" in answers[2][1]
    assert answers[9][1] == 'invalid block rate : strconv.Atoi: parsing "x": invalid syntax'


@on_uvloop
async def test_no_link_or_image_brings_about_what_costs_something(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        paths = ("pprof/heap", "pprof/profile?seconds=1", "freememory")
        answers = await _asked(
            NsqApi(listener, lambda: None), [("GET", f"/debug/{path}", b"") for path in paths]
        )
    assert [status for status, _, _ in answers] == [405] * 3


@pytest.mark.parametrize(
    ("peers", "elsewhere", "status"),
    [
        ("local", False, 200),
        ("local", True, 403),
        ("all", True, 200),
        ("none", False, 403),
    ],
)
def test_who_may_ask_for_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peers: str, elsewhere: bool, status: int
) -> None:
    if elsewhere:
        monkeypatch.setattr(debug, "_is_local", lambda _request: False)

    @on_uvloop
    async def ask(folder: Path) -> None:
        async with opened(folder, settings={"debug_peers": peers}) as listener:
            asked = [("GET", "/debug/pprof/goroutine", b""), ("POST", "/debug/freememory", b"")]
            answers = await _asked(NsqApi(listener, lambda: None), asked)
        assert [found for found, _, _ in answers] == [status] * 2

    ask(tmp_path)


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        (("127.0.0.1", 1), True),
        (("::1", 1, 0, 0), True),
        (("10.0.0.1", 1), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        ("", True),
    ],
)
def test_local_peers(peer: object, is_local: bool) -> None:
    transport = SimpleNamespace(get_extra_info=lambda _name: peer)
    assert debug._is_local(SimpleNamespace(transport=transport)) is is_local  # type: ignore[arg-type]


@on_uvloop
async def test_one_profile_at_a_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener:
        asked = [("POST", "/debug/pprof/heap", b""), ("POST", "/debug/freememory", b"")]
        with debug._alone():
            busy = await _asked(NsqApi(listener, lambda: None), asked)
        free = await _asked(NsqApi(listener, lambda: None), asked)
    assert [status for status, _, _ in busy] == [500, 500]
    assert [status for status, _, _ in free] == [200, 200]


@on_uvloop
async def test_topology_of_the_server_is_announced(tmp_path: Path) -> None:
    where = {"topology_region": "eu", "topology_zone": "eu-1"}
    async with opened(tmp_path, settings=where) as listener:
        answers = await _asked(
            NsqApi(listener, lambda: None),
            [("GET", "/info", b""), ("GET", "/config/topology_zone", b"")],
        )
    assert '"topology_zone":"eu-1","topology_region":"eu"' in answers[0][1]
    assert answers[1] == (200, "eu-1", "text/plain; charset=utf-8")
