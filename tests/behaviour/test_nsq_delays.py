"""Delays beyond max_req_timeout: allowed with max_defer, and only then."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from support.fakes.nsq import OK, FakeNsq, MakeNsq, shown, sized
from support.live.nsq import on_uvloop, opened

from broker.base.units import DAY, HOUR, MS, SECOND
from broker.protocols.nsq.http.api import NsqApi

HOUR_MS = HOUR // MS
WEEK_MS = 7 * 24 * HOUR_MS


def dpub(delay_ms: int) -> bytes:
    return b"DPUB t %d\n" % delay_ms + sized(b"x")


def test_without_max_defer_the_limit_is_that_of_nsqd(nsq: FakeNsq) -> None:
    peer = nsq.dial()
    assert peer.ask(dpub(HOUR_MS)) == [OK]
    ((_, refusal),) = peer.ask(dpub(HOUR_MS + 1))
    assert refusal == b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"


@pytest.mark.parametrize("extra", [0, 1])
def test_dpub_up_to_max_defer(make_nsq: MakeNsq, extra: int) -> None:
    peer = make_nsq(max_defer_ns=7 * DAY).dial()
    assert (peer.ask(dpub(WEEK_MS + extra)) == [OK]) == (extra == 0)


def test_a_message_of_next_week_comes_next_week(make_nsq: MakeNsq) -> None:
    nsq = make_nsq(max_defer_ns=7 * DAY)
    peer = nsq.consumer(b"t", 0)
    assert peer.ask(dpub(WEEK_MS)) == [OK]
    peer.leave()
    nsq.loop.advance(7 * DAY - SECOND)
    peer = nsq.consumer(b"t", 1)
    assert peer.frames() == []
    nsq.loop.advance(2 * SECOND)
    (message,) = peer.frames()
    assert shown(message) == (1, 1, b"x")


@on_uvloop
async def test_http_defer(tmp_path: Path) -> None:
    settings = {"max_defer_ns": 7 * DAY}
    async with opened(tmp_path, settings=settings) as listener:
        runner = web.AppRunner(NsqApi(listener, lambda: None).app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(f"http://{host}:{port}") as http:
            for delay, status in ((HOUR_MS + 1, 200), (WEEK_MS, 200), (WEEK_MS + 1, 400)):
                async with http.post(f"/pub?topic=t&defer={delay}", data=b"x") as reply:
                    assert reply.status == status
        await runner.cleanup()
