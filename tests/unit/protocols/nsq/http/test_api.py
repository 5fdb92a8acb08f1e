"""nsqd's HTTP API on real sockets: status codes, error codes, pages."""

from __future__ import annotations

import asyncio
import errno
import logging
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from support.fakes.nsq import OK, pub, shown, sized
from support.live.nsq import Client, on_uvloop, opened
from yarl import URL

from broker.protocols.nsq import limits
from broker.protocols.nsq.http.api import NsqApi
from broker.protocols.nsq.http.app import Query
from broker.protocols.nsq.http.metrics import topic_stats
from broker.protocols.nsq.http.stats import StatsPage
from broker.protocols.nsq.listener import NsqListener
from broker.runtime import vfs

CALL_WRITE = 1
CALL_UNLINK = 5


@pytest.fixture(autouse=True)
def healed() -> Iterator[None]:
    yield
    vfs.heal()


@asynccontextmanager
async def browser(
    listener: NsqListener, health: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    api = NsqApi(listener, lambda: health)
    runner = web.AppRunner(api.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.http_port = runner.addresses[0][1]
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{api.http_port}") as session:
            yield session
    finally:
        await runner.cleanup()


def _place(http: aiohttp.ClientSession) -> tuple[str, int]:
    url = http._base_url
    assert url is not None
    return url.host or "", url.port or 0


BINARY = struct.pack(">i", 2) + sized(b"a") + sized(b"b")
# method, path, body, status, answer: text, or the code of an error
REQUESTS: list[tuple[str, str, bytes, int, str]] = [
    ("GET", "/ping", b"", 200, "OK"),
    ("POST", "/ping", b"", 405, "METHOD_NOT_ALLOWED"),
    ("GET", "/none", b"", 404, "NOT_FOUND"),
    ("GET", "/%70ing", b"", 200, "OK"),
    ("GET", "/none%2f%zz", b"", 404, "NOT_FOUND"),
    ("GET", "/pub/", b"", 404, "NOT_FOUND"),
    ("POST", "/pub?topic=t", b"x", 200, "OK"),
    ("POST", "/pub?topic=t&topic=*", b"x", 200, "OK"),
    ("POST", "/pub?topic=t&defer=%2B5", b"x", 200, "OK"),
    ("POST", "/pub?topic=t", b"", 400, "MSG_EMPTY"),
    ("POST", "/pub?x=%zz", b"", 400, "MSG_EMPTY"),
    ("POST", "/pub?topic=t&x=%zz", b"x", 400, "INVALID_REQUEST"),
    ("POST", "/pub?a;b", b"x", 400, "INVALID_REQUEST"),
    ("POST", "/pub", b"x", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/pub?topic=", b"x", 400, "INVALID_TOPIC"),
    ("POST", "/pub?topic=t%0a", b"x", 400, "INVALID_TOPIC"),
    ("POST", "/pub?topic=bad_defer&defer=-1", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=1.5", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub?topic=t&defer=9223372036854775808", b"x", 400, "INVALID_DEFER"),
    ("POST", "/pub", b"x" * 101, 413, "MSG_TOO_BIG"),
    ("POST", "/pub?topic=t", b"x" * 100, 200, "OK"),
    ("POST", "/mpub?topic=m", b"a\n\nb\r\nc", 200, "OK"),
    ("POST", "/mpub?topic=m", b"", 200, "OK"),
    ("POST", "/mpub?topic=m", b"x" * 101 + b"\n", 413, "MSG_TOO_BIG"),
    ("POST", "/mpub", b"x" * 201, 413, "BODY_TOO_BIG"),
    ("POST", "/mpub?topic=m&binary=true", BINARY + b"junk", 200, "OK"),
    ("POST", "/mpub?topic=m&binary=", BINARY, 200, "OK"),
    ("POST", "/mpub?topic=m&binary=0", b"text", 200, "OK"),
    ("POST", "/mpub?topic=m&binary=1", b"", 413, "BAD_BODY"),
    ("POST", "/mpub?topic=m&binary=1", b"\0\0\0\0", 413, "BAD_BODY"),
    ("POST", "/mpub?topic=m&binary=1", b"\0\0\0\x28", 413, "BAD_BODY"),
    ("POST", "/mpub?topic=m&binary=1", BINARY[:-1], 413, "BAD_MESSAGE"),
    ("POST", "/mpub?topic=m&binary=1", b"\0\0\0\1\xff\xff\xff\xff", 413, "BAD_MESSAGE"),
    ("POST", "/topic/create?topic=n", b"", 200, ""),
    ("POST", "/topic/create", b"", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create?topic=*", b"", 400, "INVALID_TOPIC"),
    ("POST", "/topic/empty?topic=*", b"", 400, "INVALID_TOPIC"),
    ("POST", "/topic/pause?topic=*", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/topic/delete?topic=none", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/channel/create?topic=none&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
    ("POST", "/channel/create?topic=*&channel=c", b"", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/channel/create?topic=n", b"", 400, "MISSING_ARG_CHANNEL"),
    ("POST", "/channel/create?topic=n&channel=*", b"", 400, "INVALID_ARG_CHANNEL"),
    ("POST", "/channel/empty?topic=n&channel=c", b"", 404, "CHANNEL_NOT_FOUND"),
    ("POST", "/channel/create?topic=n&channel=c", b"", 200, ""),
    ("POST", "/channel/pause?topic=n&channel=c", b"", 200, ""),
    ("POST", "/channel/unpause?topic=n&channel=c", b"", 200, ""),
    ("POST", "/channel/empty?topic=n&channel=c", b"", 200, ""),
    ("POST", "/topic/pause?topic=n", b"", 200, ""),
    ("POST", "/topic/unpause?topic=n", b"", 200, ""),
    ("POST", "/topic/empty?topic=n", b"", 200, ""),
    ("POST", "/channel/delete?topic=n&channel=c", b"", 200, ""),
    ("POST", "/topic/delete?topic=n", b"", 200, ""),
]


@on_uvloop
async def test_http_requests(tmp_path: Path) -> None:
    sizes = {"max_msg_size": 100, "max_body_size": 200}
    async with opened(tmp_path, settings=sizes) as listener, browser(listener) as http:
        for method, path, body, status, answer in REQUESTS:
            url = URL(path, encoded=True)
            async with http.request(method, url, data=body, allow_redirects=False) as reply:
                text = await reply.text()
                assert (path, reply.status) == (path, status)
                assert text == (answer if status == 200 else f'{{"message":"{answer}"}}')
                plain = path in {"/ping", "/%70ing"} and status == 200
                assert ("X-Nsq-Content-Type" in reply.headers) is not plain
                assert "Server" not in reply.headers
                assert ("Content-Type" in reply.headers) is bool(text)
        logs = listener.engine.logs
        assert (logs["t"].message_count, logs["m"].message_count) == (4, 8)
        assert logs["bad_defer"].message_count == 0
        assert sorted(logs) == ["bad_defer", "m", "t"]


@on_uvloop
async def test_http_redirects_and_options(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, browser(listener) as http:
        for method, path, status, location in (
            ("GET", "/info/?a=b", 301, "/info?a=b"),
            ("GET", "/STATS", 301, "/stats"),
            ("POST", "/Pub/?topic=t", 307, "/pub?topic=t"),
            ("GET", "/ping%2f", 301, "/ping"),
            ("GET", "/Config/x%20y", 301, "/config/x%20y"),
        ):
            url = URL(path, encoded=True)
            async with http.request(method, url, allow_redirects=False) as reply:
                assert (reply.status, reply.headers["Location"]) == (status, location)
        async with http.options("/pub") as reply:
            assert (reply.status, reply.headers["Allow"]) == (200, "OPTIONS, POST")
        async with http.head("/ping") as reply:
            assert (reply.status, reply.headers["Allow"]) == (405, "GET, OPTIONS")


@on_uvloop
async def test_http_health(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, browser(listener, "no space") as http:
        async with http.get("/ping") as reply:
            assert (reply.status, await reply.text()) == (500, "NOK - no space")
        async with http.get("/stats?format=json") as reply:
            assert (await reply.json())["health"] == "NOK - no space"


@on_uvloop
async def test_http_failed_write(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, browser(listener) as http:
        vfs.fail(CALL_WRITE, errno.EIO, after=1)
        async with http.post("/pub?topic=t", data=b"x") as reply:
            assert (reply.status, await reply.json()) == (503, {"message": "EXITING"})
        async with http.post("/pub?topic=t", data=b"x") as reply:
            assert reply.status == 200


@on_uvloop
async def test_stats(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, browser(listener) as http:
        publisher, consumer = await Client.dial(listener), await Client.dial(listener)
        assert await publisher.ask(pub(b"t", b"abc")) == OK
        assert await publisher.ask(pub(b"u", b"d")) == OK
        who = b'{"client_id":"me","hostname":"here","user_agent":"test/1"}'
        assert await consumer.ask(b"IDENTIFY\n" + sized(who)) == OK
        assert await consumer.ask(b"SUB t c\n") == OK
        assert shown(await consumer.ask(b"RDY 3\n")) == (1, 1, b"abc")
        async with http.get("/stats?format=json") as reply:
            page = await reply.json()
        assert list(page) == ["version", "health", "start_time", "topics", "memory", "producers"]
        assert len(page["memory"]) == 9
        topic, other = page["topics"]
        assert (topic["topic_name"], topic["depth"], topic["message_count"]) == ("t", 0, 1)
        assert (topic["message_bytes"], other["depth"], other["channels"]) == (3, 1, [])
        (channel,) = topic["channels"]
        assert (channel["in_flight_count"], channel["depth"]) == (1, 0)
        (client,) = channel["clients"]
        assert client["remote_address"].startswith("127.0.0.1:")
        expected = {"client_id": "me", "hostname": "here", "user_agent": "test/1", "state": 3}
        assert {**client, **expected, "ready_count": 3} == client
        (producer,) = page["producers"]
        assert producer["pub_counts"] == [{"topic": "t", "count": 1}]
        for query, topics in (
            ("topic=none", None),
            ("topic=t&channel=none", []),
            ("channel=c", ["t"]),
            ("topic=u", ["u"]),
        ):
            async with http.get(f"/stats?format=json&include_mem=0&{query}") as reply:
                page = await reply.json()
            assert "memory" not in page
            assert topics == (page["topics"] and [t["topic_name"] for t in page["topics"]])
        async with http.get("/stats?format=json&include_clients=false") as reply:
            page = await reply.json()
        assert page["producers"] is None
        assert page["topics"][0]["channels"][0]["clients"] is None
        async with http.get("/stats?include_mem=false") as reply:
            lines = (await reply.text()).split("\n")
        port = client["remote_address"].rpartition(":")[2]
        name = f"here:{port} test/1"
        assert lines[3:8] == [
            "",
            "Health: OK",
            "",
            "Topics:",
            "   [t              ] depth: 0     be-depth: 0     msgs: 1        e2e%: ",
        ]
        columns = "[c                        ] depth: 0     be-depth: 0     inflt: 1    def: 0"
        assert lines[8].startswith(f"      {columns}")
        assert lines[9].startswith(f"        [V2 {name:<21}] state: 3 inflt: 1    rdy: 3    fin: 0")
        assert lines[13] == "Producers:"
        assert " topics: t=1 connected: " in lines[14]


@on_uvloop
async def test_stats_are_built_while_clients_are_served(tmp_path: Path) -> None:
    """With ten thousand clients the page takes a tenth of a second."""
    async with opened(tmp_path) as listener, browser(listener) as http:
        channels = (b"c", b"c", b"d")
        first, second, third = [await Client.dial(listener) for _ in channels]
        for client, channel in zip((first, second, third), channels, strict=True):
            assert await client.ask(b"SUB t %b\n" % channel) == OK
        pages = []

        async def build() -> None:
            pages.append(await StatsPage(listener.engine, listener.sessions).topics())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "NSQ_STATS_TURN", 0)
            building = build()
            building.send(None)  # a client is on the page
            assert await first.ask(pub(b"t", b"x")) == OK
            second.writer.write_eof()
            assert await second.reader.read() == b""
            async with http.post("/channel/delete?topic=t&channel=d") as reply:
                assert reply.status == 200
            assert await third.reader.read() == b""
            with suppress(StopIteration):
                while True:
                    building.send(None)
        (topic,) = pages[0] or ()
        shown = {c["channel_name"]: len(c["clients"]) for c in topic["channels"]}
        assert shown == {"c": 1, "d": 0}


@on_uvloop
async def test_stats_are_built_for_one_request_at_a_time(tmp_path: Path) -> None:
    """Of each that is being built, a part is built in every turn of the loop."""
    building, most = 0, 0
    topics = StatsPage.topics

    async def counted(page: StatsPage, percentiles: Sequence[float] = ()) -> object:
        nonlocal building, most
        building += 1
        most = max(most, building)
        found = await topics(page, percentiles)
        building -= 1
        return found

    async with opened(tmp_path) as listener, browser(listener) as http:
        listener.engine.open_log("t")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "NSQ_STATS_TURN", 0)
            patch.setattr(StatsPage, "topics", counted)
            api = NsqApi(listener, lambda: None)
            request = make_mocked_request("GET", "/stats")
            pages = await asyncio.gather(*(api.stats(request, Query("")) for _ in range(5)))
        assert most == 1
        assert all("[t " in str(page) for page in pages)
        async with http.get("/stats") as reply:
            assert reply.status == 200


@on_uvloop
async def test_deleting_cuts_consumers_off(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, browser(listener) as http:
        first, second, third = [await Client.dial(listener) for _ in range(3)]
        assert await first.ask(b"SUB t c\n") == OK
        assert await second.ask(b"SUB t d\n") == OK
        assert await third.ask(pub(b"t", b"x")) == OK
        async with http.post("/channel/delete?topic=t&channel=c") as reply:
            assert reply.status == 200
        assert await first.reader.read() == b""
        assert list(listener.engine.log("t").cursors) == ["d"]
        async with http.post("/topic/delete?topic=t") as reply:
            assert reply.status == 200
        assert await second.reader.read() == b""
        assert await third.ask(pub(b"t", b"y")) == OK


@on_uvloop
async def test_a_channel_whose_file_stays_is_not_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as listener, browser(listener) as http:
        consumer = await Client.dial(listener)
        assert await consumer.ask(b"SUB t c\n") == OK
        consumer.writer.write(b"RDY 5\n")
        vfs.fail(CALL_UNLINK, errno.EIO, 1)
        async with http.post("/channel/delete?topic=t&channel=c") as reply:
            assert reply.status == 503
        assert await (await Client.dial(listener)).ask(pub(b"t", b"x")) == OK
        frame = await consumer.frame()
        assert shown(frame) == (1, 1, b"x")
        async with http.post("/channel/delete?topic=t&channel=c") as reply:
            assert reply.status == 200
        assert await consumer.reader.read() == b""
    async with opened(tmp_path) as listener:
        assert not listener.engine.log("t").cursors


@on_uvloop
async def test_latency_from_publish_to_fin(tmp_path: Path) -> None:
    """Of each channel, and of all of them for the topic; in the order of the setting."""
    knobs = {"ack_latency_ns": 10**12}
    settings = {"e2e_processing_latency_percentiles": (0.99, 0.5)}
    async with (
        opened(tmp_path, settings=settings, knobs=knobs) as listener,
        browser(listener) as http,
    ):
        client = await Client.dial(listener)
        assert await client.ask(b"SUB t c\n") == OK
        listener.engine.logs["t"].open_cursor("idle")
        assert await client.ask(pub(b"t", b"abc")) == OK
        _, data = await client.ask(b"RDY 1\n")
        client.writer.write(b"FIN " + data[10:26] + b"\n")
        assert await client.ask(pub(b"u", b"x")) == OK
        async with http.get("/stats?format=json&topic=t") as reply:
            (topic,) = (await reply.json())["topics"]
        async with http.get("/stats?topic=t") as reply:
            text = await reply.text()
    busy, idle = (c["e2e_processing_latency"] for c in topic["channels"])
    assert idle == {
        "count": 0,
        "percentiles": [{"quantile": 0.99, "value": 0}, {"quantile": 0.5, "value": 0}],
    }
    assert topic["e2e_processing_latency"] == busy
    assert busy["count"] == 1
    assert [p["quantile"] for p in busy["percentiles"]] == [0.99, 0.5]
    assert all(0 < p["value"] < 20 * 10**9 for p in busy["percentiles"])
    assert "e2e%: 0.0ns, 0.0ns\n" in text


@on_uvloop
async def test_a_topic_without_channels_has_no_latency(tmp_path: Path) -> None:
    settings = {"e2e_processing_latency_percentiles": (0.99, 0.5)}
    knobs = {"ack_latency_ns": 10**12}
    async with (
        opened(tmp_path, settings=settings, knobs=knobs) as listener,
        browser(listener) as http,
    ):
        listener.engine.open_log("t")
        async with http.get("/stats?format=json&topic=t") as reply:
            (topic,) = (await reply.json())["topics"]
        async with http.get("/stats?topic=t") as reply:
            text = await reply.text()
    assert topic["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    assert "e2e%: \n" in text


@on_uvloop
async def test_a_body_that_does_not_arrive_is_no_error(tmp_path: Path) -> None:
    """The client is gone, or its chunks are malformed: nothing is published or logged."""
    head = b"POST /%s?topic=t HTTP/1.1\r\nHost: localhost\r\n"
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        async with opened(tmp_path) as listener, browser(listener) as http:
            async with http.get("/ping") as reply:  # its connection stays
                assert reply.status == 200
            for path in (b"pub", b"mpub"):
                for rest in (
                    b"Content-Length: 10\r\n\r\nabc",
                    b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
                ):
                    before = len(asyncio.all_tasks())
                    _, writer = await asyncio.open_connection(*_place(http))
                    writer.write(head % path + rest)
                    await writer.drain()
                    async with http.get("/ping") as reply:  # the request before it was begun
                        assert reply.status == 200
                    writer.transport.abort()
                    while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - rings no bell
                        await asyncio.sleep(0)
            async with http.get("/stats?format=json") as reply:
                (topic,) = (await reply.json())["topics"]
            assert topic["message_count"] == 0
    finally:
        logging.getLogger().removeHandler(handler)
    assert not [record for record in records if record.levelno >= logging.WARNING]


@on_uvloop
async def test_an_ephemeral_channel_keeps_the_latest_messages(tmp_path: Path) -> None:
    """However it is created; in memory the limit of the topic applies."""
    async with (
        opened(tmp_path, settings={"ephemeral_channel_max": 3}) as listener,
        browser(listener) as http,
    ):
        client = await Client.dial(listener)
        assert await client.ask(b"SUB t a#ephemeral\n") == OK
        other = await Client.dial(listener)
        assert await other.ask(b"SUB m#ephemeral a#ephemeral\n") == OK
        async with http.post("/channel/create?topic=t&channel=b%23ephemeral") as reply:
            assert reply.status == 200
        async with http.post("/channel/create?topic=t&channel=c") as reply:
            assert reply.status == 200
        for name in (b"t", b"m%23ephemeral"):
            async with http.post(
                URL(f"/mpub?topic={name.decode()}", encoded=True), data=b"1\n2\n3\n4\n5"
            ) as reply:
                assert reply.status == 200
        async with http.get("/stats?format=json") as reply:
            memory, topic = (await reply.json())["topics"]
        assert [c["depth"] for c in topic["channels"]] == [3, 3, 5]
        assert [c["depth"] for c in memory["channels"]] == [5]
        found = topic_stats(listener.engine.logs["t"]).channels
        assert [channel.dropped_count for channel in found] == [2, 2, 0]
        kind, data = await client.ask(b"RDY 1\n")
        assert (kind, data[26:]) == (2, b"3")


@on_uvloop
async def test_the_nearest_waiting_consumer_comes_first(tmp_path: Path) -> None:
    """Zone, then region, then anyone; whoever has no credit left does not wait."""
    settings = {
        "topology_zone": "z",
        "topology_region": "r",
        "enable_experiment": ("topology-aware-consumption",),
    }
    async with opened(tmp_path, settings=settings) as listener, browser(listener) as http:
        clients = []
        for zone, region in (("other", "other"), ("other", "r"), ("z", "other")):
            client = await Client.dial(listener)
            who = f'{{"topology_zone":"{zone}","topology_region":"{region}"}}'.encode()
            assert await client.ask(b"IDENTIFY\n" + sized(who)) == OK
            assert await client.ask(b"SUB t c\n") == OK
            client.writer.write(b"RDY 2\n")
            assert await client.ask(pub(b"ready", b"x")) == OK  # RDY has been read by then
            clients.append(client)
        publisher = await Client.dial(listener)
        for body in b"123456":
            assert await publisher.ask(pub(b"t", bytes([body]))) == OK
        got = [[shown(await c.frame())[2] for _ in range(2)] for c in clients]
        assert got == [[b"5", b"6"], [b"3", b"4"], [b"1", b"2"]]
        async with http.get("/stats?format=json&topic=t") as reply:
            ((channel,),) = [t["channels"] for t in (await reply.json())["topics"]]
    counts = [channel[f"{name}_msg_count"] for name in ("zone_local", "region_local", "global")]
    assert counts == [2, 2, 2]


@on_uvloop
async def test_without_the_experiment_topology_does_not_count(tmp_path: Path) -> None:
    settings = {"topology_zone": "z"}
    async with opened(tmp_path, settings=settings) as listener, browser(listener) as http:
        client = await Client.dial(listener)
        assert await client.ask(b"IDENTIFY\n" + sized(b'{"topology_zone":"z"}')) == OK
        assert await client.ask(b"SUB t c\n") == OK
        assert await client.ask(pub(b"t", b"x")) == OK
        assert shown(await client.ask(b"RDY 1\n"))[2] == b"x"
        async with http.get("/stats?format=json&topic=t") as reply:
            ((channel,),) = [t["channels"] for t in (await reply.json())["topics"]]
    assert channel["global_msg_count"] == 1
    assert "zone_local_msg_count" not in channel
