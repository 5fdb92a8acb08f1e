"""Streams, consumers, buckets and objects of JetStream; what is shown consumes nothing."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import nats
import pytest
from nats.js import JetStreamContext
from support.console import BROKER, Console, console
from support.servers.leafs import on_uvloop

from broker.console import limits
from broker.console.api.jetstream.service import jetstream_of

STREAMS = "/v1/jetstream/accounts/$G/streams"
ORDERS = f"{STREAMS}/ORDERS"
BUCKET = f"{STREAMS}/KV_settings"
STORE = f"{STREAMS}/OBJ_files"
OFF = "[jetstream]\nenabled = false\n"


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[Console, JetStreamContext]]:
    async with console(folder) as broker:
        host, port = broker.server.ports["nats"]
        client = await nats.connect(f"nats://{host}:{port}")
        try:
            yield broker, client.jetstream()
        finally:
            await client.close()


async def fill(js: JetStreamContext) -> None:
    """Messages 1 to 6 on two subjects."""
    await js.add_stream(name="ORDERS", subjects=["orders.*"])
    for number in range(1, 7):
        subject = "orders.eu" if number % 2 else "orders.us"
        await js.publish(subject, b"m%d" % number, headers={"N": str(number)})


def bodies(page: Any) -> list[str]:
    return [row["body"] for row in page["messages"]]


def seqs(page: Any) -> list[int]:
    return [row["seq"] for row in page["messages"]]


@on_uvloop
async def test_without_jetstream(tmp_path: Path) -> None:
    async with console(tmp_path, base=OFF + BROKER) as broker:
        assert (await broker.get("/v1/jetstream"))["enabled"] is False
        assert (await broker.get("/v1/jetstream/streams"))["streams"] == []
        answer = await broker.ask("GET", ORDERS)
        assert (answer.status, answer.json["code"]) == (409, "OFF")


@on_uvloop
async def test_lists(tmp_path: Path) -> None:
    async with connected(tmp_path) as (broker, js):
        await fill(js)
        await js.create_key_value(bucket="settings")
        await js.create_object_store("files")
        await js.pull_subscribe("orders.eu", durable="worker")
        page = await broker.get("/v1/jetstream/streams")
        assert [(row["name"], row["kind"]) for row in page["streams"]] == [
            ("KV_settings", "kv"), ("OBJ_files", "object"), ("ORDERS", "stream"),
        ]  # fmt: skip
        page = await broker.get("/v1/jetstream/streams", sort="-messages", limit=1)
        assert [(row["name"], row["messages"]) for row in page["streams"]] == [("ORDERS", 6)]
        page = await broker.get("/v1/jetstream/streams", filter="SETT", kind="kv")
        assert (page["matched"], page["total"]) == (1, 3)
        assert (await broker.get("/v1/jetstream/streams", account="other"))["total"] == 0
        whole = await broker.get("/v1/jetstream")
        assert (whole["streams"], whole["consumers"], whole["messages"]) == (3, 1, 6)
        stream = await broker.get(ORDERS)
        assert (stream["first_seq"], stream["last_seq"], stream["num_subjects"]) == (1, 6, 2)
        assert stream["config"]["subjects"] == ["orders.*"]
        [consumer] = (await broker.get(f"{ORDERS}/consumers"))["consumers"]
        assert (consumer["name"], consumer["pending"], consumer["filters"]) == (
            "worker", 3, ["orders.eu"],
        )  # fmt: skip


@on_uvloop
async def test_what_needs_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer to which nothing is delivered between two looks, and a stream that is offline."""
    monkeypatch.setattr(limits, "ATTENTION_AGE", 0)
    monkeypatch.setattr(limits, "ATTENTION_DEPTH", 3)
    async with connected(tmp_path) as (broker, js):
        await fill(js)
        worker = await js.pull_subscribe("orders.*", durable="worker")
        await js.pull_subscribe("orders.eu", durable="quick")
        await js.delete_consumer("ORDERS", "quick")

        async def texts() -> list[str]:
            page = await broker.get("/v1/overview")
            return [one["text"] for one in page["attention"] if "disk" not in one["text"]]

        stalled = "consumer worker of ORDERS: 6 messages wait and none is delivered"
        assert await texts() == []  # the first look
        assert await texts() == [stalled]
        (item,) = [
            one for one in (await broker.get("/v1/overview"))["attention"] if one["text"] == stalled
        ]
        assert (item["account"], item["stream"], item["topic"]) == ("$G", "ORDERS", None)
        (message,) = await worker.fetch(1)
        await message.ack()
        assert await texts() == []
        assert await texts() == [stalled.replace("6", "5")]
        for message in await worker.fetch(3):
            await message.ack()
        assert await texts() == []
        assert await texts() == []  # two are no backlog
        jetstream = jetstream_of(broker.app.context)
        assert jetstream is not None
        jetstream.accounts["$G"].offline["LOST"] = "cannot be read"
        assert await texts() == ["stream LOST is offline: cannot be read"]


@on_uvloop
async def test_messages(tmp_path: Path) -> None:
    path = f"{ORDERS}/messages"
    async with connected(tmp_path) as (broker, js):
        await fill(js)
        puller = await js.pull_subscribe("orders.*", durable="worker")
        page = await broker.get(path, limit=4)
        assert (bodies(page), page["next"]) == (["m1", "m2", "m3", "m4"], 5)
        page = await broker.get(path, limit=4, from_=5)
        assert (bodies(page), page["next"]) == (["m5", "m6"], None)
        page = await broker.get(path, newest_first="true", limit=2)
        assert (bodies(page), page["next"]) == (["m6", "m5"], 4)
        assert seqs(await broker.get(path, newest_first="true", from_=2)) == [2, 1]
        assert seqs(await broker.get(path, subject="orders.us")) == [2, 4, 6]
        assert seqs(await broker.get(path, name="EU", newest_first="true")) == [5, 3, 1]
        assert seqs(await broker.get(path, latest="true", newest_first="true")) == [6, 5]
        assert seqs(await broker.get(path, header="n: 4")) == [4]
        assert seqs(await broker.get(path, contains="M5")) == [5]
        row = (await broker.get(path, from_=3, limit=1))["messages"][0]
        assert seqs(await broker.get(path, time=row["timestamp"])) == [3, 4, 5, 6]
        assert seqs(await broker.get(path, time=row["timestamp"], newest_first="true")) == [2, 1]
        assert seqs(await broker.get(path, time="2100-01-01T00:00:00Z")) == []
        assert (await broker.ask("GET", path, subject="a..b")).status == 400
        assert (await broker.ask("GET", path, time="noon")).status == 400
        assert (await broker.ask("GET", path, time="5", from_="1")).status == 400
        # nobody's position has moved
        [consumer] = (await broker.get(f"{ORDERS}/consumers"))["consumers"]
        assert (consumer["pending"], consumer["delivered_seq"]) == (6, 0)
        assert len(await puller.fetch(6)) == 6


@on_uvloop
async def test_a_search_goes_on_after_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_SCAN_MAX", 10)
    monkeypatch.setattr(limits, "STREAM_SCAN_STEP", 5)
    async with connected(tmp_path) as (broker, js):
        await js.add_stream(name="ORDERS", subjects=["orders"])
        for number in range(40):
            await js.publish("orders", b"needle" if number % 12 == 0 else b"hay")
        for order in ("false", "true"):
            found: list[int] = []
            page: Any = {"next": 40 if order == "true" else 1}
            pages = 0
            while page["next"] is not None:
                page = await broker.get(
                    f"{ORDERS}/messages", contains="NEED", newest_first=order, limit=1,
                    from_=page["next"],
                )  # fmt: skip
                assert page["scanned"] <= 10
                found += seqs(page)
                pages += 1
            assert sorted(found) == [1, 13, 25, 37]
            assert pages > 4


@on_uvloop
async def test_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "broker.console")
    async with connected(tmp_path) as (broker, js):
        await broker.change("POST", STREAMS, {"name": "ORDERS", "subjects": ["orders.*"]})
        taken = await broker.ask("POST", STREAMS, {"name": "OTHER", "subjects": ["orders.eu"]})
        assert (taken.status, taken.json["code"]) == (400, "JS10065")
        for number in range(6):
            await js.publish("orders.eu" if number % 2 else "orders.us", b"x")
        await broker.change("PATCH", ORDERS, {"max_msgs": 100})
        config = (await broker.get(ORDERS))["config"]
        assert (config["max_msgs"], config["subjects"]) == (100, ["orders.*"])
        assert (await broker.ask("POST", f"{ORDERS}/purge", {}, confirm="orders")).status == 409
        found = await broker.change(
            "POST", f"{ORDERS}/purge", {"subject": "orders.eu", "keep": 1}, confirm="ORDERS"
        )
        assert found == {"purged": 2}
        await broker.change("DELETE", f"{ORDERS}/messages/1", confirm="1")
        gone = await broker.ask("DELETE", f"{ORDERS}/messages/1", confirm="1")
        assert (gone.status, gone.json["code"]) == (409, "JS10057")
        assert (await broker.ask("DELETE", f"{ORDERS}/messages/x", confirm="x")).status == 400
        assert seqs(await broker.get(f"{ORDERS}/messages")) == [3, 5, 6]
        await js.pull_subscribe("orders.*", durable="worker")
        worker = f"{ORDERS}/consumers/worker"
        await broker.change("POST", f"{worker}/pause", {"until": "2100-01-01T00:00:00Z"})
        [consumer] = (await broker.get(f"{ORDERS}/consumers"))["consumers"]
        assert consumer["paused"] is True
        await broker.change("POST", f"{worker}/unpause")
        [consumer] = (await broker.get(f"{ORDERS}/consumers"))["consumers"]
        assert consumer["paused"] is False
        assert (await broker.ask("DELETE", worker, confirm="other")).status == 409
        await broker.change("DELETE", worker, confirm="worker")
        assert (await broker.ask("DELETE", worker, confirm="worker")).json["code"] == "JS10014"
        await broker.change("DELETE", ORDERS, confirm="ORDERS")
        assert (await broker.ask("GET", ORDERS)).status == 404
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith(f"200 DELETE {ORDERS}?confirm=ORDERS (") for line in lines)


@on_uvloop
async def test_keys(tmp_path: Path) -> None:
    async with connected(tmp_path) as (broker, js):
        bucket = await js.create_key_value(bucket="settings", history=3)
        put = await broker.change("PUT", f"{BUCKET}/keys/app.color", {"body": "red"})
        entry = await bucket.get("app.color")
        assert (entry.value, entry.revision) == (b"red", put["revision"])
        data = {"body": "/w==", "encoding": "base64"}
        await broker.change("PUT", f"{BUCKET}/keys/app.color", data)
        assert (await bucket.get("app.color")).value == b"\xff"
        await broker.change("DELETE", f"{BUCKET}/keys/app.color", confirm="app.color")
        with pytest.raises(nats.js.errors.KeyNotFoundError):
            await bucket.get("app.color")
        history = await broker.get(f"{BUCKET}/messages", subject="$KV.settings.app.color")
        assert seqs(history) == [1, 2, 3]
        await broker.change("DELETE", f"{BUCKET}/keys/app.color", confirm="app.color", purge="true")
        history = await broker.get(f"{BUCKET}/messages", subject="$KV.settings.app.color")
        assert [row["headers"]["KV-Operation"] for row in history["messages"]] == [["PURGE"]]
        assert (await broker.ask("PUT", f"{BUCKET}/keys/a%20b", {"body": ""})).status == 400
        await js.add_stream(name="ORDERS", subjects=["orders"])
        refused = await broker.ask("PUT", f"{ORDERS}/keys/a", {"body": ""})
        assert (refused.status, refused.json["code"]) == (409, "NOT_BUCKET")


@on_uvloop
async def test_objects(tmp_path: Path) -> None:
    content = hashlib.sha512(b"seed").digest() * 9_000  # several pieces
    async with connected(tmp_path) as (broker, js):
        store = await js.create_object_store("files")
        await store.put("docs/big file", content)
        answer = await broker.ask("GET", f"{STORE}/objects/docs%2Fbig%20file")
        assert (answer.status, answer.body) == (200, content)
        assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''big%20file"
        assert (await broker.ask("GET", f"{STORE}/objects/none")).status == 404
        # a piece is missing: the download breaks, instead of being taken for the object
        await broker.change("DELETE", f"{STORE}/messages/2", confirm="2")
        with pytest.raises(aiohttp.ClientError):
            await broker.ask("GET", f"{STORE}/objects/docs%2Fbig%20file")
        await store.delete("docs/big file")
        assert (await broker.ask("GET", f"{STORE}/objects/docs%2Fbig%20file")).status == 404


HOSTILE = [
    *(b"null", b"[1]", b"7", b"{"),
    *(b'{"size": "x", "nuid": "a"}', b'{"size": -1, "nuid": "a"}'),
    *(b'{"size": 1, "nuid": ["a"]}', b'{"size": 1, "nuid": "*"}', b'{"digest": 1, "nuid": "a"}'),
    b'{"nuid": "a", "options": {"link": {"name": "x"}}}',
]


@on_uvloop
async def test_what_is_stored_as_an_object_may_be_anything(tmp_path: Path) -> None:
    async with connected(tmp_path) as (broker, js):
        await js.create_object_store("files")
        for body in HOSTILE:
            await js.publish("$O.files.M.bmFtZQ==", body)
            answer = await broker.ask("GET", f"{STORE}/objects/name")
            assert (answer.status, answer.json["code"]) == (404, "NO_OBJECT"), body
