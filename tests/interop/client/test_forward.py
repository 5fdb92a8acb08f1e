"""`twinwire forward` to another topic, to HTTP and to NATS."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any, cast

import nats
import pytest
from aiohttp import web
from support import Server
from support.clients.http import nsq_channel, request
from support.clients.inbox import WAIT_S, Inbox, Open
from support.servers.nsqd import StartNsq

from broker.cli.tools import forward
from broker.client.nsq import Message

Run = Any
BODIES = [b"a%d &?" % n for n in range(50)]


def _publish(server: Server, topic: str) -> None:
    answer = request(server.nsq_http, "POST", f"/mpub?topic={topic}", b"\n".join(BODIES))
    assert answer.status == 200


def _start(tool: Run, server: Server, topic: str, *more: str) -> Any:
    return tool("forward", "--topic", topic, "--nsqd-tcp-address", str(server.nsq), *more)


async def _end(process: Any, server: Server, topic: str) -> bytes:
    process.send_signal(signal.SIGTERM)
    _, err = await asyncio.to_thread(process.communicate, None, WAIT_S)
    assert process.returncode == 0
    channel = nsq_channel(server.nsq_http, topic, "forward")
    assert channel["in_flight_count"] == 0
    found: bytes = err
    return found


async def test_to_another_server_and_topic(
    tool: Run, server: Server, start_nsq: StartNsq, opened: Open, uniq: str
) -> None:
    """One of the destinations does not exist: the other gets everything."""
    other, inbox = start_nsq(), Inbox()
    _publish(server, uniq)
    process = _start(
        tool,
        server,
        uniq,
        *("--destination-nsqd-tcp-address", str(other.nsq), "--destination-topic", "there"),
        *("--destination-nsqd-tcp-address", "127.0.0.1:1"),
    )
    await opened(other, "there", inbox, max_in_flight=100)
    got = [await inbox.next() for _ in BODIES]
    assert sorted(message.body for message in got) == sorted(BODIES)
    for message in got:
        message.finish()
    await _end(process, server, uniq)


class _Site:
    """An HTTP endpoint that refuses the first request."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[str, bytes, Any]] = asyncio.Queue()
        self.refusals = 1
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read() if request.method == "POST" else request.query["m"].encode()
        if self.refusals:
            self.refusals -= 1
            return web.Response(status=503)
        self.requests.put_nowait((request.method, body, request.headers))
        return web.Response()


@pytest.fixture
async def site() -> AsyncIterator[_Site]:
    made = _Site()
    app = web.Application()
    app.router.add_route("*", "/in", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_to_http(tool: Run, server: Server, site: _Site, uniq: str, method: str) -> None:
    """All that was taken is finished, and the one refused is not."""
    _publish(server, uniq)
    url = f"http://127.0.0.1:{site.port}/in" + ("?m=%s" if method == "GET" else "")
    way = ("--post", url, "--content-type", "text/x") if method == "POST" else ("--get", url)
    process = _start(tool, server, uniq, *way, "--header", "X-A: b", "-n", "5")
    got = [await asyncio.wait_for(site.requests.get(), WAIT_S) for _ in range(len(BODIES) - 1)]
    assert len({body for _, body, _ in got}) == len(BODIES) - 1
    assert {body for _, body, _ in got} <= set(BODIES)
    assert got[0][0] == method
    assert got[0][2]["X-A"] == "b"
    if method == "POST":
        assert got[0][2]["Content-Type"] == "text/x"
    assert b"status 503" in await _end(process, server, uniq)
    channel = nsq_channel(server.nsq_http, uniq, "forward")
    assert (channel["requeue_count"] >= 1, channel["deferred_count"]) == (True, 1)


@pytest.mark.only_ours
async def test_to_nats(tool: Run, broker: Server, server: Server, uniq: str) -> None:
    client = await nats.connect(broker.nats_url)
    subscription = await client.subscribe(f"from.{uniq}")
    await client.flush()
    _publish(server, uniq)
    process = _start(tool, server, uniq, "--nats", str(broker.nats), "--subject", f"from.{uniq}")
    got = [(await subscription.next_msg(WAIT_S)).data for _ in BODIES]
    assert sorted(got) == sorted(BODIES)
    assert await _end(process, server, uniq) == b""
    await client.close()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--get", "http://127.0.0.1/"),
        ("--post", "http://127.0.0.1/", "--nats", "127.0.0.1:1"),
        ("--post", "http://127.0.0.1/", "--mode", "hostpool"),
        ("--post", "http://127.0.0.1/", "--header", "nonsense"),
        ("--post", "not-a-url"),
        ("--post", "http://"),
        ("--get", "ftp://127.0.0.1/%s"),
        ("--nats", "127.0.0.1:1", "--subject", "a b"),
        ("--nats", "127.0.0.1:1", "--subject", "a.>"),
    ],
)
def test_wrong_use(tool: Run, server: Server, arguments: tuple[str, ...]) -> None:
    process = _start(tool, server, "t", *arguments)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert b"Error: " in err


@pytest.mark.parametrize("more", [(), ("--destination-topic", "t")])
def test_a_topic_is_not_forwarded_to_itself(
    tool: Run, server: Server, more: tuple[str, ...]
) -> None:
    """Each message would come back for ever."""
    back = ("--destination-nsqd-tcp-address", f"localhost:{server.nsq.port}", *more)
    process = _start(tool, server, "t", *back)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert b"messages would go back to the topic t, for ever" in err


async def test_an_nsqd_is_not_a_nats_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the client's first word, and the client for the server's."""
    monkeypatch.setattr(forward, "NATS_ANSWER_S", 0.4)
    target = forward.NatsTarget(str(server.nsq), "a")
    with pytest.raises(forward.TargetError, match=f"{server.nsq} is not a NATS server"):
        await target.send(Message(cast("Any", None), b"0" * 16, 1, 1, b"x"))
