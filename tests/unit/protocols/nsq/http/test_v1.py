"""Our own pages on the NSQ HTTP listener."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.live.nsq import Client, on_uvloop, opened

from broker.protocols.nsq.http.api import NsqApi
from broker.protocols.nsq.http.app import ApiError, Query, Route, make_app
from broker.protocols.nsq.http.settings import TopicSettings
from broker.protocols.nsq.http.v1 import V1Api, headers_of, moment_ns
from broker.protocols.nsq.listener import NsqListener
from broker.runtime import vfs

CALL_WRITE = 1


@pytest.fixture(autouse=True)
def healed() -> Iterator[None]:
    yield
    vfs.heal()


class Pages:
    """Requests to the pages of one listener."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def ask(
        self, method: str, path: str, data: Any = None, /, **query: str
    ) -> tuple[int, Any]:
        """Status and answer."""
        async with self.session.request(method, path, params=query, data=data) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()

    async def publish(self, *bodies: bytes, **query: str) -> None:
        for body in bodies:
            assert await self.ask("POST", "/pub", body, topic="t", **query) == (200, "OK")


@asynccontextmanager
async def pages(listener: NsqListener) -> AsyncIterator[Pages]:
    api = NsqApi(listener, lambda: None)
    api.extra_routes = V1Api(listener, TopicSettings(listener.engine), list).routes()
    runner = web.AppRunner(api.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(url) as session:
            found = Pages(session)
            await found.ask("POST", "/topic/create", topic="t")
            await found.ask("POST", "/channel/create", topic="t", channel="c")
            yield found
    finally:
        await runner.cleanup()


async def subscribed(listener: NsqListener, ready: int = 10) -> Client:
    client = await Client.dial(listener)
    assert (await client.ask(b"SUB t c\nRDY %d\n" % ready))[1] == b"OK"
    return client


@on_uvloop
async def test_rewind_gives_again_what_was_finished(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, pages(listener) as page:
        client = await subscribed(listener)
        await page.publish(b"a", b"b", b"c")
        for body in (b"a", b"b", b"c"):
            _, message = await client.frame()
            assert message[26:] == body
            client.writer.write(b"FIN %s\n" % message[10:26])
        status, answer = await page.ask(
            "POST", "/v1/channel/rewind", topic="t", channel="c", seq="2"
        )
        assert status == 200
        assert (answer["seq"], answer["oldest_seq"], answer["end_seq"]) == (2, 1, 4)
        for body in (b"b", b"c"):
            _, message = await client.frame()
            assert (message[26:], message[8:10]) == (body, b"\0\1")
            # what was given before the rewind is not in flight any more, this is
            client.writer.write(b"FIN %s\n" % message[10:26])
        status, answer = await page.ask(
            "POST", "/v1/channel/rewind", topic="t", channel="c", to="now"
        )
        assert (status, answer["seq"], answer["depth"]) == (200, 4, 0)
        status, answer = await page.ask(
            "POST", "/v1/channel/rewind", topic="t", channel="c", to="2001-01-01T00:00:00Z"
        )
        assert (status, answer["seq"]) == (200, 1)


BAD = [
    ({"topic": "t", "channel": "c"}, "INVALID_ARG_TO: give exactly one of to and seq"),
    ({"topic": "t", "channel": "c", "to": "now", "seq": "1"}, "INVALID_ARG_TO: give exactly one"),
    ({"topic": "t", "channel": "c", "to": "yesterday"}, "INVALID_ARG_TO: must be oldest, now,"),
    ({"topic": "t", "channel": "c", "to": "2026-01-01T00:00:00"}, "INVALID_ARG_TO: must be"),
    ({"topic": "t", "channel": "c", "seq": "-1"}, "INVALID_ARG_SEQ: must be a whole number from 0"),
    ({"topic": "t", "channel": "no", "to": "now"}, "CHANNEL_NOT_FOUND"),
    ({"topic": "no", "channel": "c", "to": "now"}, "TOPIC_NOT_FOUND"),
    ({"topic": "t", "to": "now"}, "MISSING_ARG_CHANNEL"),
    ({"channel": "c", "to": "now"}, "MISSING_ARG_TOPIC"),
]


@on_uvloop
async def test_what_is_wrong_with_a_rewind_is_said(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, pages(listener) as page:
        for query, reason in BAD:
            status, answer = await page.ask("POST", "/v1/channel/rewind", None, **query)
            assert status in (400, 404)
            assert answer["message"].startswith(reason)
        status, _ = await page.ask("GET", "/v1/channel/rewind", topic="t", channel="c")
        assert status == 405


def test_moments() -> None:
    assert moment_ns("1700000000") == 1_700_000_000 * 10**9
    assert moment_ns("1700000000.25") == 1_700_000_000 * 10**9 + 250_000_000
    assert moment_ns("2023-11-14T22:13:20Z") == 1_700_000_000 * 10**9
    assert moment_ns("2023-11-14T23:13:20.5+01:00") == 1_700_000_000 * 10**9 + 500_000_000
    for text in ("", "1700000000000", "2023-11-14", "2023-11-14T22:13:20", "x", "-1"):
        with pytest.raises(ApiError):
            moment_ns(text)


@on_uvloop
async def test_messages_of_a_channel(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, pages(listener) as page:
        await page.publish(b"one", b"\xff", b"three", b"four")
        await page.publish(b"later", defer="60000")
        client = await subscribed(listener, 2)
        _, first = await client.frame()
        await client.frame()
        client.writer.write(b"REQ %s 50000\n" % first[10:26])
        assert (await client.frame())[1][26:] == b"three"
        status, answer = await page.ask("GET", "/v1/channel/messages", topic="t", channel="c")
        assert status == 200
        assert [(m["seq"], m["state"], m["attempts"]) for m in answer["messages"]] == [
            (1, "deferred", 1),
            (2, "in_flight", 1),
            (3, "in_flight", 1),
            (4, "waiting", 0),
            (5, "deferred", 0),
        ]
        counts = (answer["depth"], answer["deferred_count"], answer["in_flight_count"])
        assert counts == (1, 2, 2)
        assert answer["next"] is None
        one, two, _, four, later = answer["messages"]
        assert (one["body"], one["encoding"]) == ("b25l", "base64")
        assert two["client"]["remote_address"].startswith("127.0.0.1:")
        assert two["timeout_at"] > two["in_flight_since"] >= two["timestamp"]
        assert later["deferred_until"] > later["timestamp"]
        assert (four["subject"], four["headers"], four["body_bytes"]) == ("t", {}, 4)
        query = {"topic": "t", "channel": "c", "body": "text", "limit": "2", "from": "2"}
        _, answer = await page.ask("GET", "/v1/channel/messages", **query)
        assert answer["next"] == 4
        shown = [(m["body"], m["encoding"]) for m in answer["messages"]]
        assert shown == [("/w==", "base64"), ("three", "text")]
        query = {"topic": "t", "channel": "c", "state": "deferred", "body": "none"}
        _, answer = await page.ask("GET", "/v1/channel/messages", **query)
        assert [(m["seq"], "body" in m) for m in answer["messages"]] == [(1, False), (5, False)]


@on_uvloop
async def test_messages_of_a_topic(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, pages(listener) as page:
        await page.publish(b"given")
        await page.ask("POST", "/topic/pause", topic="t")
        await page.publish(b"kept")
        _, answer = await page.ask("GET", "/v1/topic/messages", topic="t", body="text")
        assert [(m["seq"], m["body"]) for m in answer["messages"]] == [(2, "kept")]
        assert (answer["depth"], answer["oldest_seq"], answer["end_seq"]) == (1, 1, 3)
        _, answer = await page.ask("GET", "/v1/topic/messages", topic="t", state="all")
        assert [m["seq"] for m in answer["messages"]] == [1, 2]


@on_uvloop
async def test_a_page_that_is_asked_for_wrongly(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, pages(listener) as page:
        for query, message in (
            ({"limit": "0"}, "INVALID_ARG_LIMIT: must be a whole number from 1 to 1000, got '0'"),
            ({"from": "x"}, f"INVALID_ARG_FROM: must be a whole number from 0 to {2**62}, got 'x'"),
            ({"body": "xml"}, "INVALID_ARG_BODY: must be one of base64, text, none, got 'xml'"),
        ):
            for path in ("/v1/channel/messages", "/v1/topic/messages"):
                answer = await page.ask("GET", path, None, topic="t", channel="c", **query)
                assert answer == (400, {"message": message})


def test_headers_are_shown() -> None:
    assert headers_of(b"NATS/1.0\r\nA: 1\r\nB:2\r\nA: 3\r\n\r\n") == {
        "A": ["1", "3"],
        "B": ["2"],
    }
    assert headers_of(b"") == {}


@on_uvloop
async def test_settings_are_set_shown_and_taken_back(tmp_path: Path) -> None:
    path = "/v1/topic/settings"
    plain = {"max_age": "off", "max_bytes": 0, "max_msgs": 0, "keep": "off", "keep_bytes": 0}
    async with opened(tmp_path) as listener, pages(listener) as page:
        status, answer = await page.ask("GET", path, topic="t")
        assert (status, answer["settings"], answer["set"]) == (200, {"sync": "none", **plain}, {})
        given = b'{"sync": "2s", "keep": "7d", "max_bytes": "1GiB", "max_msgs": null}'
        status, answer = await page.ask("PUT", path, given, topic="t")
        expected = {"sync": "2s", "keep": "7d", "max_bytes": 1 << 30}
        assert (status, answer["set"]) == (200, expected)
        assert answer["settings"] == {**plain, **expected}
        assert await page.ask("GET", path, topic="t") == (200, answer)
        log = listener.engine.log("t")
        assert log is not None
        assert (log.retention.keep_ns, log.retention.limits) == (7 * 86400 * 10**9, (0, 1 << 30, 0))
        _, answer = await page.ask("PUT", path, b'{"sync": "always"}', topic="t")
        assert answer["set"] == {"sync": "always"}
        await page.publish(b"synced before it is answered")
        _, answer = await page.ask("DELETE", path, topic="t")
        assert (answer["settings"], answer["set"]) == ({"sync": "none", **plain}, {})


BOTH = (
    'keep: expected a string with a unit ("10s"), got a whole number (1); '
    "max_msgs: must be between 0 and 4611686018427387904, got -1"
)


@on_uvloop
async def test_settings_that_are_wrong_are_refused_with_reasons(tmp_path: Path) -> None:
    path = "/v1/topic/settings"
    async with opened(tmp_path) as listener, pages(listener) as page:
        for given, reason in (
            (b"", "the body must be a JSON object: Input data was truncated"),
            (b"[]", "the body must be a JSON object: Expected `object`, got `array`"),
            (b'{"a":"\xff"}', "the body must be a JSON object: "),
            (b'{"a":' + b"[" * 60_000, "the body must be a JSON object: "),
            (b'{"max_mesgs": 1}', "max_mesgs: unknown key (did you mean max_msgs?)"),
            (b'{"sync": "later", "max_msgs": 1}', 'sync: must be "always", "none" or a period: '),
            (b'{"keep_bytes": true, "max_msgs": 1}', "keep_bytes: expected a size, got a boolean"),
            (b'{"keep": 1, "max_msgs": -1}', BOTH),
        ):
            status, answer = await page.ask("PUT", path, given, topic="t")
            assert status == 400
            assert answer["message"].startswith(f"INVALID_SETTINGS: {reason}")
        assert (await page.ask("PUT", path, b" " * 70_000, topic="t"))[0] == 413
        assert await page.ask("PUT", path, b"{}", topic="no") == (
            404,
            {"message": "TOPIC_NOT_FOUND"},
        )
        log = listener.engine.log("t")
        assert log is not None
        assert log.settings == {}


@on_uvloop
async def test_what_the_disk_does_not_take_is_not_promised(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, pages(listener) as page:
        await page.publish(b"x")
        vfs.fail(CALL_WRITE, errno.ENOSPC, times=1_000_000)
        answer = await page.ask("POST", "/v1/channel/rewind", topic="t", channel="c", to="now")
        vfs.heal()
        assert answer == (503, {"message": "NOT_SAVED: No space left on device"})
        (tmp_path / "t" / "meta.json.new").mkdir()
        for method, path in (
            ("PUT", "/v1/topic/settings"),
            ("DELETE", "/v1/topic/settings"),
        ):
            answer = await page.ask(method, path, b'{"max_msgs": 5}', topic="t")
            assert answer == (503, {"message": "NOT_SAVED: Is a directory"})
        (tmp_path / "t" / "meta.json.new").rmdir()
        _, shown = await page.ask("GET", "/v1/topic/settings", topic="t")
        assert shown["set"] == {}


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        (OSError(errno.EROFS, "Read-only file system"), (503, "NOT_SAVED: Read-only file system")),
        (ConnectionResetError(errno.ECONNRESET, "reset"), (500, "INTERNAL_ERROR")),
        (TimeoutError(), (500, "INTERNAL_ERROR")),
    ],
)
async def test_only_an_error_of_the_disk_is_named(
    problem: OSError, answer: tuple[int, str]
) -> None:
    async def fails(_request: web.Request, _query: Query) -> None:
        raise problem

    runner = web.AppRunner(make_app({"/fails": {"POST": Route(fails)}}, 1), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/fails"
    async with aiohttp.ClientSession() as session, session.post(url) as response:
        assert (response.status, await response.json()) == (answer[0], {"message": answer[1]})
    await runner.cleanup()
