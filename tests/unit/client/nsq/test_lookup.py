"""Finding servers through nsqlookupds, of either age."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from broker.client.nsq import ConnectError, NsqError, Options, Reader, Writer
from broker.client.nsq.errors import reason_of
from broker.client.nsq.lookup import Lookup
from broker.client.nsq.options import parse_address, parse_options

WAIT_S = 20.0


class _Nsqlookupd:
    """Answers /lookup and /topics with what a test wants."""

    def __init__(self) -> None:
        self.answer: Any = {"producers": []}
        self.status = 200
        self.polls: asyncio.Queue[str] = asyncio.Queue()
        self.address = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.polls.put_nowait(request.query.get("topic", ""))
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[_Nsqlookupd, _Nsqlookupd]]:
    runners, made = [], []
    for _ in range(2):
        fake, app = _Nsqlookupd(), web.Application()
        app.router.add_get("/{any}", fake.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        fake.address = f"127.0.0.1:{runner.addresses[0][1]}"
        runners.append(runner)
        made.append(fake)
    yield made[0], made[1]
    for runner in runners:
        await runner.cleanup()


def _producer(port: int) -> dict[str, object]:
    return {"broadcast_address": "a", "tcp_port": port, "remote_address": "other:1"}


async def test_wrapped_and_bare_answers_are_joined(pair: tuple[_Nsqlookupd, _Nsqlookupd]) -> None:
    old, new = pair
    old.answer = {"status_code": 200, "data": {"producers": [_producer(1), _producer(2)]}}
    new.answer = {"producers": [_producer(2), _producer(3)]}
    lookup = Lookup([old.address, f"http://{new.address}/"])
    assert await lookup.producers("t") == ({("a", 1), ("a", 2), ("a", 3)}, [])
    assert await old.polls.get() == "t"
    await lookup.close()


async def test_none_yet_is_no_failure(pair: tuple[_Nsqlookupd, _Nsqlookupd]) -> None:
    pair[0].status, pair[0].answer = 404, {"message": "TOPIC_NOT_FOUND"}
    lookup = Lookup([pair[0].address])
    assert await lookup.producers("t") == (set(), [])
    await lookup.close()


async def test_one_that_fails_does_not_hide_the_other(
    pair: tuple[_Nsqlookupd, _Nsqlookupd],
) -> None:
    bad, good = pair
    good.answer = {"producers": [_producer(1)]}
    lookup = Lookup([bad.address, good.address, "127.0.0.1:1"])
    for status, answer in ((500, {}), (200, [1]), (200, {"producers": [{"tcp_port": "x"}]})):
        bad.status, bad.answer = status, answer
        found, failures = await lookup.producers("t")
        assert found == {("a", 1)}
        assert len(failures) == 2
    await lookup.close()


async def test_why_a_server_cannot_be_reached_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookup = Lookup(["127.0.0.1:1"])
    _, (failure,) = await lookup.producers("t")
    await lookup.close()
    assert str(failure) == "http://127.0.0.1:1: connection refused"

    async def resolve(*_words: object, **_more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with pytest.raises(ConnectError, match=r"^nohost:4150: name or service not known$"):
        await Writer("nohost:4150").connect()


def test_why_tls_failed_is_said_in_words() -> None:
    """Its errors have numbers of their own, which are others in the system."""
    untrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] ...")
    untrusted.verify_message = "self-signed certificate"
    assert reason_of(untrusted) == "the certificate is not trusted: self-signed certificate"
    other = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    other.reason = "WRONG_VERSION_NUMBER"
    assert reason_of(other) == "wrong version number"


class _Clock:
    """Notes what is asked for and lets the test run it."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[float, Any]] = asyncio.Queue()

    def now(self) -> float:
        return 0.0

    def call_later(self, delay_s: float, callback: Any) -> Any:
        if delay_s != 5:  # the rounds of redistribution
            self.asked.put_nowait((delay_s, callback))
        return type("Timer", (), {"cancel": lambda self: None})()


def _timed(clock: _Clock) -> type[Reader]:
    """Readers on this clock."""
    return type("TimedReader", (Reader,), {"_clock": clock})


async def test_polls_come_every_minute_and_up_to_a_third_later(
    pair: tuple[_Nsqlookupd, _Nsqlookupd],
) -> None:
    clock, fake = _Clock(), pair[0]
    reader = _timed(clock)("t", "c", lookupd=fake.address)
    await reader.start()
    delays = []
    for _ in range(20):
        assert await asyncio.wait_for(fake.polls.get(), WAIT_S) == "t"
        delay_s, callback = await asyncio.wait_for(clock.asked.get(), WAIT_S)
        delays.append(delay_s)
        callback()
    assert min(delays) >= 60
    assert max(delays) <= 78
    assert len(set(delays)) == 20
    await reader.close()


async def test_a_direct_address_is_tried_again_ever_later() -> None:
    clock = _Clock()
    errors: list[NsqError] = []
    reader = _timed(clock)("t", "c", nsqd="127.0.0.1:1", on_error=errors.append)
    await reader.start()
    delays = []
    for _ in range(7):
        delay_s, callback = await asyncio.wait_for(clock.asked.get(), WAIT_S)
        delays.append(delay_s)
        callback()
    assert delays == [8, 16, 32, 64, 120, 120, 120]
    assert len(errors) == 7
    await reader.close()


def test_one_kind_of_address_is_needed() -> None:
    with pytest.raises(ValueError, match="not both"):
        Reader("t", "c")
    with pytest.raises(ValueError, match="not both"):
        Reader("t", "c", nsqd="a:1", lookupd="b:2")


def test_addresses() -> None:
    assert parse_address("host") == ("host", 4150)
    assert parse_address("[::1]:7") == ("::1", 7)
    for text in ("", "host:", ":1", "host:x", "host:0", "host:65536"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_address(text)


def test_words_of_consumer_opt() -> None:
    options = parse_options(["msg_timeout=2m", "snappy", "client_id=me", "sample_rate=7"])
    assert options == Options(msg_timeout_ms=120_000, snappy=True, client_id="me", sample_rate=7)
    for word in ("nonsense=1", "snappy=perhaps", "sample_rate=many", "tls_root_ca_file=/none"):
        with pytest.raises(ValueError, match=r"unknown|invalid value|invalid number|TLS files"):
            parse_options([word])
    with pytest.raises(ValueError, match="TLS files: /none: No such file"):
        parse_options(["tls_v1", "tls_cert=/none"])
    insecure = parse_options(["tls_v1", "tls_insecure_skip_verify"])
    assert insecure.tls is not None
