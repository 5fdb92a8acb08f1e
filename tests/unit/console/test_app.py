"""The console's application: the API is as openapi.json describes it; headers, files, redirects,
forged requests, audit lines."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import jsonschema
import nats
import pytest
from support.console import Answer, Console, console
from support.servers.leafs import on_uvloop

from broker.base.logs import message_of
from broker.console.app import DOCUMENT
from broker.engine.cursor.cursor import open_cursor
from broker.engine.log.publish import append

API = json.loads(DOCUMENT)
OPERATIONS = {
    each["operationId"]: (method.upper(), path, each)
    for path, methods in API["paths"].items()
    for method, each in methods.items()
}
HEADERS = (
    b"NATS/1.0\r\nTwinwire-Topic: orders\r\nTwinwire-Channel: billing\r\n"
    b"Twinwire-Reason: attempts\r\n\r\n"
)
ORDERS = "/v1/topics/orders"
BILLING = f"{ORDERS}/channels/billing"
DEAD = "/v1/dead-letters/orders.dead"
JS_STREAMS = "/v1/jetstream/accounts/$G/streams"
WORKER = f"{JS_STREAMS}/S/consumers/worker"
BUCKET = {"max_msgs_per_subject": 2, "allow_rollup_hdrs": True}

# Each operation with a request for it, in an order in which they work.
Request = tuple[str, str, object, dict[str, object]]
REQUESTS: tuple[Request, ...] = (
    ("session", "/v1/session", None, {}),
    ("openapi", "/v1/openapi.json", None, {}),
    ("createTopic", "/v1/topics", {"name": "orders"}, {}),
    ("createChannel", f"{ORDERS}/channels", {"name": "billing"}, {}),
    ("publish", "/v1/publish", {"topic": "orders", "body": "one", "headers": {"A": ["b"]}}, {}),
    ("publish", "/v1/publish", {"subject": "some.where", "body": "AQ==", "encoding": "base64"}, {}),
    ("overview", "/v1/overview", None, {}),
    ("topics", "/v1/topics", None, {"filter": "ORD", "sort": "-depth", "non_empty": "true"}),
    ("topic", ORDERS, None, {}),
    ("setTopic", f"{ORDERS}/settings", {"max_age": "1d"}, {}),
    ("topicMessages", f"{ORDERS}/messages", None, {"contains": "ONE", "header": "a: B"}),
    ("channels", f"{ORDERS}/channels", None, {"sort": "-name"}),
    ("channel", BILLING, None, {}),
    ("channelMessages", f"{BILLING}/messages", None, {"state": "waiting", "body_": "base64"}),
    ("pauseTopic", f"{ORDERS}/pause", None, {}),
    ("unpauseTopic", f"{ORDERS}/unpause", None, {}),
    ("pauseChannel", f"{BILLING}/pause", None, {}),
    ("unpauseChannel", f"{BILLING}/unpause", None, {}),
    ("setDeadLetterPolicy", f"{BILLING}/dead-letters", {"max_attempts": 3}, {}),
    ("deadLetters", "/v1/dead-letters", None, {}),
    ("deadLetterGroups", DEAD, None, {"scan": 10}),
    ("requeue", f"{DEAD}/requeue", {"limit": 1, "rate": 1000}, {}),
    ("stopRequeue", f"{DEAD}/requeue", None, {}),
    ("unsetDeadLetterPolicy", f"{BILLING}/dead-letters", None, {}),
    ("seekChannel", f"{BILLING}/seek", {"to": "now"}, {"confirm": "billing"}),
    ("emptyChannel", f"{BILLING}/empty", None, {"confirm": "billing"}),
    ("emptyTopic", f"{ORDERS}/empty", None, {"confirm": "orders"}),
    ("nats", "/v1/nats", None, {}),
    ("natsConnections", "/v1/nats/connections", None, {"state": "any"}),
    ("natsSubscriptions", "/v1/nats/subscriptions", None, {"limit": 3}),
    ("natsAccounts", "/v1/nats/accounts", None, {}),
    ("natsLeafs", "/v1/nats/leafs", None, {}),
    ("jetstream", "/v1/jetstream", None, {}),
    ("createStream", JS_STREAMS, {"name": "S", "subjects": ["s.*"]}, {}),
    ("createStream", JS_STREAMS, {"name": "KV_b", "subjects": ["$KV.b.>"]} | BUCKET, {}),
    ("streams", "/v1/jetstream/streams", None, {"sort": "-last", "kind": "stream"}),
    ("updateStream", f"{JS_STREAMS}/S", {"max_msgs": 5}, {}),
    ("putKey", f"{JS_STREAMS}/KV_b/keys/k", {"body": "1"}, {}),
    ("streamMessages", f"{JS_STREAMS}/KV_b/messages", None, {"latest": "true", "name": "K"}),
    ("deleteKey", f"{JS_STREAMS}/KV_b/keys/k", None, {"confirm": "k"}),
    ("deleteStreamMessage", f"{JS_STREAMS}/KV_b/messages/2", None, {"confirm": "2"}),
    ("purgeStream", f"{JS_STREAMS}/KV_b/purge", {"keep": 1}, {"confirm": "KV_b"}),
    ("stream", f"{JS_STREAMS}/KV_b", None, {}),
    ("streamConsumers", f"{JS_STREAMS}/S/consumers", None, {"filter": "WORK"}),
    ("pauseStreamConsumer", f"{WORKER}/pause", {"until": "4000000000"}, {}),
    ("unpauseStreamConsumer", f"{WORKER}/unpause", None, {}),
    ("deleteStreamConsumer", WORKER, None, {"confirm": "worker"}),
    ("deleteStream", f"{JS_STREAMS}/S", None, {"confirm": "S"}),
    ("readers", "/v1/readers", None, {}),
    ("deleteReader", "/v1/readers/r1", None, {"confirm": "r1"}),
    ("configuration", "/v1/configuration", None, {}),
    ("logs", "/v1/logs", None, {"level": "info"}),
    ("deleteChannel", BILLING, None, {"confirm": "billing"}),
    ("deleteTopic", ORDERS, None, {"confirm": "orders"}),
    ("logout", "/v1/session", None, {}),
)
STREAMS = {"events", "tail", "streamObject"}  # test_events.py, behaviour/test_console_jetstream.py
LOGIN = {"login"}  # test_access.py


def check(name: str, answer: Answer) -> None:
    """The answer is as the file says."""
    responses = OPERATIONS[name][2]["responses"]
    response = responses.get(str(answer.status), responses["default"])
    schema = {**response["content"]["application/json"]["schema"], "components": API["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json)


@on_uvloop
@pytest.mark.parametrize("state", ["open", "closed", "any"])
async def test_an_account_that_nobody_knows_has_no_connections(tmp_path: Path, state: str) -> None:
    async with console(tmp_path) as broker:
        path = "/v1/nats/connections"
        answer = await broker.ask("GET", path, state=state, account="NOBODY")
        check("natsConnections", answer)
        assert (answer.status, answer.json["total"], answer.json["connections"]) == (200, 0, [])


async def add_reader(broker: Console) -> None:
    log = await broker.publish("read", b"x")
    host, port = broker.server.ports["bulk"]
    body = {"positions": {"read": {"seq": 1, "incarnation": log.log_id.hex()}}, "hold": True}
    async with broker.http.put(f"http://{host}:{port}/bulk/v1/readers/r1", json=body) as answer:
        assert answer.status == 200


async def add_consumer(broker: Console) -> None:
    """A consumer `worker` of the stream S."""
    host, port = broker.server.ports["nats"]
    client = await nats.connect(f"nats://{host}:{port}")
    await client.jetstream().pull_subscribe("s.a", durable="worker", stream="S")
    await client.close()


async def add_dead_letters(broker: Console) -> None:
    log = broker.log("orders.dead")
    for _ in range(3):
        append(log, b"dead", headers=HEADERS)
    open_cursor(log, "requeue")


@on_uvloop
async def test_answers_are_as_the_file_says(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await add_reader(broker)
        await add_dead_letters(broker)
        for name, path, body, query in REQUESTS:
            if name == "streamConsumers":
                await add_consumer(broker)
            answer = await broker.ask(OPERATIONS[name][0], path, body, **query)
            assert answer.status == 200, (name, answer)
            check(name, answer)


def test_every_operation_is_tried() -> None:
    assert {name for name, *_ in REQUESTS} | STREAMS | LOGIN == set(OPERATIONS)


async def test_every_handler_is_in_the_file(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.get("/v1/session")
        assert set(broker.app.handlers) | set(broker.app.request_handlers) == set(OPERATIONS)
        assert not set(broker.app.handlers) & set(broker.app.request_handlers)


@pytest.mark.parametrize(
    ("method", "path", "code", "status"),
    [
        ("GET", "/v1/nothing", "NOT_FOUND", 404),
        ("GET", "/v1/", "NOT_FOUND", 404),
        ("PATCH", "/v1/topics", "METHOD", 405),
        ("POST", "/", "METHOD", 405),
        ("GET", "/nothing", "NOT_FOUND", 404),
        ("GET", "/../api/topics.py", "NOT_FOUND", 404),
        ("GET", "/v1/topics?limit=0", "BAD_ARGUMENT", 400),
        ("GET", "/v1/topics?limit=x", "BAD_ARGUMENT", 400),
        ("GET", "/v1/topics?sort=colour", "BAD_ARGUMENT", 400),
        ("GET", "/v1/topics?colour=red", "BAD_ARGUMENT", 400),
        ("GET", "/v1/topics/none", "NO_TOPIC", 404),
        ("GET", "/v1/topics/t/channels/none", "NO_CHANNEL", 404),
        ("GET", "/v1/topics/t/messages?time=noon", "BAD_ARGUMENT", 400),
        ("GET", "/v1/topics/t/messages?time=1&from=1", "BAD_ARGUMENT", 400),
        ("DELETE", "/v1/topics/t", "BAD_ARGUMENT", 400),
        ("DELETE", "/v1/topics/t?confirm=T", "CONFIRM", 409),
        ("POST", "/v1/topics/t/empty?confirm=x", "CONFIRM", 409),
        ("DELETE", "/v1/readers/none?confirm=none", "NO_READER", 404),
        ("DELETE", "/v1/dead-letters/t/requeue", "NO_JOB", 404),
        ("GET", "/v1/events?of=/v1/logs/x", "NOT_FOUND", 404),
        ("GET", "/v1/events?of=/v1/configuration", "NOT_LIVE", 400),
        ("GET", "/v1/tail?topic=none", "NO_TOPIC", 404),
        ("GET", "/v1/tail", "BAD_ARGUMENT", 400),
        ("GET", "/v1/tail?subject=a..b", "BAD_ARGUMENT", 400),
        ("GET", "/v1/tail?subject=a&account=none", "NO_ACCOUNT", 404),
    ],
)
async def test_refusals(tmp_path: Path, method: str, path: str, code: str, status: int) -> None:
    async with console(tmp_path) as broker:
        await broker.publish("t", b"x")
        answer = await broker.ask(method, path)
        assert (answer.status, answer.json["code"]) == (status, code)
        assert answer.json["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"body": "x"}, "BAD_BODY"),
        ({"topic": "t", "subject": "t", "body": "x"}, "BAD_BODY"),
        ({"topic": "t", "body": 5}, "BAD_BODY"),
        ({"topic": "t", "body": "x", "color": 1}, "BAD_BODY"),
        ({"topic": "t t", "body": "x"}, "BAD_ARGUMENT"),
        ({"topic": "t", "body": ""}, "BAD_ARGUMENT"),
        ({"topic": "t", "body": "?", "encoding": "base64"}, "BAD_ARGUMENT"),
        ({"topic": "t", "body": "x", "headers": {"a b": ["c"]}}, "BAD_ARGUMENT"),
        ({"topic": "t", "body": "x", "headers": {"a": ["c\r\nd: e"]}}, "BAD_ARGUMENT"),
        ({"topic": "t", "body": "x", "delay_ms": 10**15}, "BAD_ARGUMENT"),
        ({"subject": "a.*", "body": "x"}, "BAD_ARGUMENT"),
        ({"subject": "a b", "body": "x"}, "BAD_ARGUMENT"),
        ([], "BAD_BODY"),
    ],
)
async def test_what_cannot_be_published(tmp_path: Path, body: object, code: str) -> None:
    async with console(tmp_path) as broker:
        answer = await broker.ask("POST", "/v1/publish", body)
        assert (answer.status, answer.json["code"]) == (400, code)
        assert "t" not in broker.server.engine.logs


# --- headers and files


async def test_changes_need_the_header(tmp_path: Path) -> None:
    """A page of another site can send a form, but neither this header nor JSON."""
    async with console(tmp_path) as broker:
        await broker.publish("t", b"x")
        url = f"{broker.url}/v1/topics/t/pause"
        async with broker.http.post(url) as answer:
            assert (answer.status, (await answer.json())["code"]) == (403, "FORGED")
        async with broker.http.post(
            f"{broker.url}/v1/topics", data='{"name":"u"}', headers={"Twinwire-Console": "1"}
        ) as answer:
            assert (answer.status, (await answer.json())["code"]) == (415, "BAD_TYPE")
        assert not broker.log("t").paused
        assert "u" not in broker.server.engine.logs


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_requests_of_other_sites(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with console(tmp_path) as broker:
        assert (await broker.ask("GET", "/v1/overview", None, headers)).status == status


async def test_security_headers(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        for path in ("/", "/v1/session", "/nothing"):
            headers = (await broker.ask("GET", path)).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "Server" not in headers


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/topics", "/#topics"),
        ("/topics/orders", "/#topic?topic=orders"),
        ("/topics/or%22ders/a%26b", "/#channel?topic=or%22ders&channel=a%26b"),
        ("/nodes", "/#nats"),
        ("/nodes/host:4151", "/#nats"),
        ("/lookup", "/#topics"),
        ("/counter", "/#overview"),
    ],
)
async def test_addresses_of_nsqadmin(tmp_path: Path, path: str, target: str) -> None:
    async with console(tmp_path) as broker:
        answer = await broker.ask("GET", path)
        assert (answer.status, answer.headers["Location"]) == (302, target)


async def test_changes_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "broker.console")

    def lines() -> list[Any]:
        return [r for r in caplog.records if r.name == "broker.console"]

    async with console(tmp_path) as broker:
        await broker.publish("t", b"x")
        await broker.get("/v1/topics")
        assert lines() == []
        await broker.change("POST", "/v1/topics/t/pause")
        (line,) = lines()
        assert line.getMessage().startswith("200 POST /v1/topics/t/pause (127.0.0.1:")
        await broker.ask("DELETE", "/v1/topics/none", confirm="none")
        assert lines()[1].getMessage().startswith("404 DELETE /v1/topics/none?confirm=none (")
        body = {"topic": "u", "body": "a secret", "headers": {"A": ["another"]}, "delay_ms": 5}
        await broker.change("POST", "/v1/publish", body)
        text = message_of(lines()[2])
        assert " topic=u delay_ms=5 user=- role=admin" in text
        assert "secret" not in text
        assert "another" not in text
        await broker.change("POST", "/v1/topics", {"name": "v"})
        assert " name=v user=- " in message_of(lines()[3])
        async with broker.http.post(f"{broker.url}/v1/topics/t/pause") as answer:
            assert answer.status == 403  # forged
        assert lines()[4].getMessage().startswith("403 POST /v1/topics/t/pause (127.0.0.1:")
