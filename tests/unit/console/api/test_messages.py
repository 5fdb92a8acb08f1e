"""Messages by seq, time, text and header; none is consumed."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from support.console import console

from broker.console import limits
from broker.engine.cursor.cursor import cursors_of, open_cursor
from broker.engine.log.publish import append

PATH = "/v1/topics/t/messages"


def bodies(page: Any) -> list[str]:
    return [row.get("body") for row in page["messages"]]


async def test_pages(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        open_cursor(broker.log("t"), "c")
        await broker.publish("t", *(b"m%d" % number for number in range(1, 6)))
        found: list[str] = []
        page = await broker.get(PATH, limit=2)
        while True:
            found += bodies(page)
            if page["next"] is None:
                break
            page = await broker.get(PATH, limit=2, from_=page["next"])
        assert found == ["m1", "m2", "m3", "m4", "m5"]
        assert bodies(await broker.get(PATH, from_=4)) == ["m4", "m5"]
        cursor = cursors_of(broker.log("t"))["c"]
        assert (cursor.depth, cursor.in_flight_count) == (5, 0)
        waiting = await broker.get("/v1/topics/t/channels/c/messages", state="waiting")
        assert bodies(waiting) == found
        flying = await broker.get("/v1/topics/t/channels/c/messages", state="in_flight")
        assert bodies(flying) == []


async def test_a_search_goes_on_after_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCAN_MAX", 10)
    monkeypatch.setattr(limits, "SCAN_STEP", 5)
    async with console(tmp_path) as broker:
        texts = [b"needle %d" % n if n % 12 == 0 else b"hay" for n in range(1, 40)]
        await broker.publish("t", *texts)
        found, start, pages = [], 0, 0
        while start is not None:
            page = await broker.get(PATH, contains="NEEDLE", limit=2, from_=start)
            assert page["scanned"] <= 10
            found += bodies(page)
            start, pages = page["next"], pages + 1
        assert found == ["needle 12", "needle 24", "needle 36"]
        assert pages > 2


async def test_a_full_page_of_a_search_skips_nothing(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.publish("t", b"a1", b"a2", b"b", b"a3")
        first = await broker.get(PATH, contains="a", limit=1)
        second = await broker.get(PATH, contains="a", limit=2, from_=first["next"])
        assert bodies(first) + bodies(second) == ["a1", "a2", "a3"]


async def test_headers_and_bytes(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        log = broker.log("t")
        append(log, b"x", headers=b"NATS/1.0\r\nTrace: abc\r\n\r\n")
        append(log, b"\xff\x00needle", headers=b"NATS/1.0\r\nOther: abc\r\n\r\n")
        await broker.publish("t", b"plain")
        assert bodies(await broker.get(PATH, header="trace")) == ["x"]
        assert bodies(await broker.get(PATH, header="TRACE: AB")) == ["x"]
        assert bodies(await broker.get(PATH, header="Trace: z")) == []
        (row,) = (await broker.get(PATH, contains="needle"))["messages"]
        assert row["encoding"] == "base64"
        assert base64.b64decode(row["body"]) == b"\xff\x00needle"
        rows = (await broker.get(PATH, body_="base64"))["messages"]
        assert base64.b64decode(rows[0]["body"]) == b"x"
        assert "body" not in (await broker.get(PATH, body_="none"))["messages"][0]


async def test_from_a_time_on(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.publish("t", b"first")
        await broker.publish("t", b"second")
        rows = (await broker.get(PATH))["messages"]
        at = rows[1]["timestamp"]
        assert bodies(await broker.get(PATH, time=at)) in (["second"], ["first", "second"])
        assert bodies(await broker.get(PATH, time="2000-01-01T00:00:00Z")) == ["first", "second"]
        assert bodies(await broker.get(PATH, time="2100-01-01T00:00:00Z")) == []


async def test_a_long_body_is_cut(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await broker.publish("t", b"x" * (limits.SHOWN_BYTES_MAX + 1), b"short")
        long, short = (await broker.get(PATH))["messages"]
        assert (len(long["body"]), long["truncated"]) == (limits.SHOWN_BYTES_MAX, True)
        assert long["body_bytes"] == limits.SHOWN_BYTES_MAX + 1
        assert short["truncated"] is False
