"""Streams: answers when they change, shared by equal requests; new messages; their ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.console import console

from broker.console import limits


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_INTERVAL", 10_000_000)
    monkeypatch.setattr(limits, "OVERVIEW_INTERVAL", 10_000_000)
    monkeypatch.setattr(limits, "TAIL_INTERVAL", 10_000_000)
    monkeypatch.setattr(limits, "EVENTS_HEARTBEAT", 200_000_000)  # it notices who has left


async def test_a_page_is_sent_again_when_it_changes(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.publish("t", b"x")
        async with await broker.events("/v1/events", of="/v1/topics?limit=1") as events:
            first = await events.until("data")
            assert [row["name"] for row in first["topics"]] == ["t"]
            await broker.publish("t", b"y")
            found = await events.until("data", lambda page: page["topics"][0]["depth"] == 2)
            assert len(found["topics"]) == 1
        await broker.wait(lambda: not broker.app.streams.open)


async def test_equal_requests_share_one_task(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        streams = [await broker.events("/v1/events", of="/v1/nats/accounts") for _ in range(5)]
        for one in streams:
            await one.until("data")
        feeds = broker.app.streams._feeds
        assert [feed.followers for feed in feeds.values()] == [5]
        for one in streams:
            one.response.close()
        await broker.wait(lambda: not feeds)  # nobody follows it: it is not asked


async def test_a_problem_does_not_end_the_stream(tmp_path: Path) -> None:
    async with (
        console(tmp_path) as broker,
        await broker.events("/v1/events", of="/v1/topics/t") as events,
    ):
        problem = await events.until("problem")
        assert (problem["status"], problem["code"]) == (404, "NO_TOPIC")
        await broker.publish("t", b"x")
        assert (await events.until("data"))["name"] == "t"


async def test_a_stop_ends_streams(tmp_path: Path) -> None:
    async with (
        console(tmp_path) as broker,
        await broker.events("/v1/events", of="/v1/overview") as events,
    ):
        await events.until("data")
        await broker.server.stop()
        await events.end()


async def test_too_many_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_MAX", 1)
    async with (
        console(tmp_path) as broker,
        await broker.events("/v1/events", of="/v1/nats") as events,
    ):
        await events.until("data")
        answer = await broker.ask("GET", "/v1/events", of="/v1/nats")
        assert (answer.status, answer.json["code"]) == (503, "STREAMS")


# --- tail


async def test_new_messages_of_a_topic(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.publish("t", b"before")
        async with await broker.events("/v1/tail", topic="t", contains="A") as events:
            await events.block()  # it begins
            await broker.publish("t", b"after", b"other", b"again")
            found = [(await events.until("message"))["body"] for _ in range(2)]
        assert found == ["after", "again"]
        assert broker.log("t").depth == 4


async def test_new_messages_of_a_subject(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        async with await broker.events("/v1/tail", subject="a.*") as events:
            await events.block()
            body = {"subject": "a.b", "body": "hello", "headers": {"K": ["v", "w"]}, "reply": "r"}
            answer = await broker.change("POST", "/v1/publish", body)
            assert answer == {"published": 1, "subscribers": 1}
            found = await events.until("message")
            assert (found["subject"], found["body"], found["reply"]) == ("a.b", "hello", "r")
            assert found["headers"] == {"K": ["v", "w"]}
        await broker.wait(lambda: not broker.app.streams.open)
        assert (await broker.change("POST", "/v1/publish", body))["subscribers"] == 0


async def test_too_many_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TAIL_MESSAGES_MAX", 3)
    async with console(tmp_path) as broker:
        await broker.publish("t", b"before")
        async with await broker.events("/v1/tail", topic="t") as events:
            await events.block()
            await broker.publish("t", *(b"%d" % number for number in range(10)))
            shown, dropped = [], 0
            while len(shown) + dropped < 10:
                name, data = await events.next()
                if name == "dropped":
                    dropped += data["count"]
                else:
                    shown.append(data["body"])
        assert dropped
        assert shown[-1] == "9"


async def test_the_topic_is_deleted(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.publish("t", b"x")
        async with await broker.events("/v1/tail", topic="t") as events:
            await events.block()
            await broker.change("DELETE", "/v1/topics/t", confirm="t")
            assert (await events.until("problem"))["code"] == "NO_TOPIC"
