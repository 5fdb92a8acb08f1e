"""The list of topics: order, filter, pages; in steps that leave the loop free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.console import Console, console
from support.engine import Rig

from broker.console import limits
from broker.console.listing import Listing, Rates, Selection, Sweep, ordered
from broker.engine.cursor.cursor import open_cursor


def names(page: dict[str, Any]) -> list[str]:
    return [row["name"] for row in page["topics"]]


@pytest.fixture
async def listing(tmp_path: Path) -> AsyncIterator[tuple[Rig, Listing]]:
    rig = Rig(tmp_path / "logs")
    found = Listing(rig.engine)
    try:
        yield rig, found
    finally:
        found.close()
        rig.abandon()


async def test_order_and_pages(listing: tuple[Rig, Listing]) -> None:
    rig, found = listing
    for name, count in (("b", 3), ("a", 1), ("d", 0), ("c", 2)):
        log = rig.engine.open_log(name)
        for _ in range(count):
            rig.publish(log, [b"x"])

    async def page(sort: str, offset: int = 0, limit: int = 10, **more: Any) -> list[str]:
        return names(
            await found.page(Selection(more.pop("text", None), sort, offset, limit, **more))
        )

    assert await page("name") == ["a", "b", "c", "d"]
    assert await page("-name") == ["d", "c", "b", "a"]
    assert await page("-name", 1, 2) == ["c", "b"]
    assert await page("-name", 3, 2) == ["a"]
    assert await page("name", 4, 2) == []
    assert await page("depth") == ["d", "a", "c", "b"]
    assert await page("-depth", 1, 2) == ["c", "a"]
    assert await page("name", non_empty=True) == ["a", "b", "c"]
    assert await page("-name", 0, 2, non_empty=True) == ["c", "b"]
    assert await page("name", text="B") == ["b"]
    rig.engine.delete_log("b")
    assert await page("name") == ["a", "c", "d"]
    assert await page("-depth") == ["c", "a", "d"]


async def test_a_name_that_a_stream_stands_for_is_no_topic(listing: tuple[Rig, Listing]) -> None:
    rig, found = listing
    rig.engine.open_log("a")
    assert names(await found.page(Selection(None, "name", 0, 10))) == ["a"]
    rig.engine.reserve("s", object())
    rig.engine.announce("s", None, True)
    page = await found.page(Selection(None, "name", 0, 10))
    assert (names(page), page["total"]) == (["a"], 1)
    rig.engine.announce("s", None, False)


async def test_values_of_channels(listing: tuple[Rig, Listing]) -> None:
    rig, found = listing
    log = rig.engine.open_log("t")
    open_cursor(log, "c1")
    open_cursor(log, "c2")
    rig.publish(log, [b"x"])
    page = await found.page(Selection(None, "name", 0, 10))
    row = page["topics"][0]
    assert (row["depth"], row["backlog"], row["channels"], row["messages"]) == (2, 0, 2, 1)
    assert found.channel_row(open_cursor(log, "c1"))["depth"] == 1


async def test_a_sweep_is_shared_and_kept(listing: tuple[Rig, Listing]) -> None:
    rig, found = listing
    rig.engine.open_log("t")
    first, second = await asyncio.gather(found.current_sweep(), found.current_sweep())
    assert first is second
    assert await found.current_sweep() is first  # it is younger than SWEEP_AGE
    assert first.totals["depth"] == 0


async def test_values_are_dropped_when_nobody_looks(
    listing: tuple[Rig, Listing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_KEPT", 1)
    _, found = listing
    await found.current_sweep()
    async with asyncio.timeout(10):
        while found.sweep is not None:  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0)


async def test_a_list_by_name_prepares_other_orders(listing: tuple[Rig, Listing]) -> None:
    rig, found = listing
    rig.engine.open_log("t")
    await found.page(Selection(None, "name", 0, 10))
    assert found.sweep is not None or found._sweeping is not None


async def test_few_topics_are_counted_while_nobody_looks(
    listing: tuple[Rig, Listing], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, found = listing
    rig.engine.open_log("t")
    found.count_if_quick()  # the names are not in order yet
    assert found._sweeping is None
    await found.ready()
    monkeypatch.setattr(limits, "HISTORY_TOPICS_MAX", 0)
    found.count_if_quick()
    assert found._sweeping is None
    monkeypatch.undo()
    found.count_if_quick()
    assert found._sweeping is not None
    await found._sweeping
    first = found.sweep
    assert first is not None
    first.at_ns -= limits.SWEEP_AGE
    found.count_if_quick()  # a page that is open would count again
    assert found._sweeping is None
    first.at_ns -= limits.HISTORY_COUNT_AGE
    found.count_if_quick()
    assert found._sweeping is not None
    await found._sweeping
    assert found.sweep is not first


async def test_ordered_in_steps() -> None:
    rows = range(3 * limits.SORT_CHUNK)

    def value(row: int) -> float:
        return -row % 97

    wanted = sorted(rows, key=value)
    assert await ordered(rows, value, 0, 50) == wanted[:50]
    assert await ordered(rows, value, 2990, 3100) == wanted[2990:]
    assert (
        await ordered(rows, value, 0, 9, descending=True)
        == sorted(rows, key=value, reverse=True)[:9]
    )
    assert await ordered([], value, 0, 50) == []


async def test_changes_while_the_names_are_sorted(listing: tuple[Rig, Listing]) -> None:
    rig, found = listing
    for name in ("b", "d"):
        rig.engine.open_log(name)
    ready = asyncio.create_task(found.ready())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it has taken the names
    rig.engine.open_log("c")
    rig.engine.delete_log("d")
    await ready
    assert found.names == ["b", "c"]


async def test_rates_of_all_topics(listing: tuple[Rig, Listing]) -> None:
    rig, _ = listing
    logs = {name: rig.engine.open_log(name) for name in ("a", "c")}
    before = Sweep(0)
    for log in logs.values():
        before.add(log)
    logs["b"] = rig.engine.open_log("b")
    rig.publish(logs["c"], [b"x", b"y"])
    after = Sweep(2 * 10**9)
    for name in sorted(logs):
        after.add(logs[name])
    await after.compare(before)
    assert list(after.column("in_rate")) == [0.0, 0.0, 1.0]
    assert list(after.column("messages")) == [0, 0, 2]


def test_rates() -> None:
    now_ns = 0
    rates = Rates(lambda: now_ns)
    assert rates.of("t", (0, 5)) == (None, None)
    now_ns = limits.SAMPLE_AGE // 2
    assert rates.of("t", (10, 5)) == (None, None)
    now_ns = 2 * limits.SAMPLE_AGE
    assert rates.of("t", (10, 5)) == (5.0, 0.0)
    now_ns += 2 * limits.SAMPLE_AGE
    assert rates.of("t", (0, 9)) == (0.0, 2.0)  # emptied or made again: not negative


async def test_new_topics_are_on_the_page(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        assert (await broker.get("/v1/topics"))["total"] == 0
        await add(broker, "b", "a")
        page = await broker.get("/v1/topics")
        assert (page["total"], names(page)) == (2, ["a", "b"])
        await broker.change("DELETE", "/v1/topics/a", confirm="a")
        assert names(await broker.get("/v1/topics")) == ["b"]


async def add(broker: Console, *topics: str) -> None:
    for topic in topics:
        await broker.publish(topic, b"x")
