"""Long lists: others have their turn meanwhile; names of all kinds are found by a pattern."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from support.engine import Rig

from broker.bulk import limits
from broker.bulk.access import Caller, Identity
from broker.bulk.read.reader_handlers import ReaderHandlers
from broker.bulk.read.readers import Readers, StoredReader
from broker.bulk.read.topics import TopicHandlers
from broker.bulk.responses import CALLER


def pages_of(engine: Any) -> Any:
    context: Any = SimpleNamespace(
        engine=engine, identity=Identity("b", "0" * 32, 0), is_quarantined=lambda _name: False
    )
    return TopicHandlers(context)


class Asking(dict[object, object]):
    """A request of an identified caller."""

    def __init__(self, **query: str) -> None:
        super().__init__({CALLER: Caller("c")})
        self.query = query


def asking(**query: str) -> Any:
    return Asking(**query)


async def test_names_that_do_not_match_are_gone_through_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100,000 topics perhaps none matches, and a query asks every second."""
    monkeypatch.setattr(limits, "BULK_STEP", 0)
    names = [f"some.department.{number}" for number in range(500)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    live = asyncio.create_task(others())
    pages = pages_of(SimpleNamespace(logs=dict.fromkeys(names), owned={}, quarantined={}))
    response = await pages.topics(asking(pattern=r"orders\..*"))
    assert orjson.loads(response.body)["topics"] == []
    assert turns >= len(names)
    live.cancel()


async def test_readers_are_shown_with_pauses(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BULK_STEP", 0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def nowhere(*_: object) -> None:
        pass

    with Rig(tmp_path / "logs") as rig:
        readers = Readers(rig.engine, tmp_path / "readers", nowhere)
        for number in range(50):
            await readers.put(StoredReader(f"r{number}", 60))
        live = asyncio.create_task(others())
        context: Any = SimpleNamespace()
        response: Any = await ReaderHandlers(context, readers).show(asking())
        live.cancel()
    assert len(orjson.loads(response.body)["readers"]) == 50
    assert turns >= 50


@pytest.mark.parametrize(
    ("pattern", "found"),
    [(".*", ["größe.a", "größe.b", "plain"]), (r"größe\..", ["größe.a", "größe.b"])],
)
async def test_names_that_are_not_ascii(tmp_path: Any, pattern: str, found: list[str]) -> None:
    with Rig(tmp_path / "logs") as rig:
        for name in ("größe.a", "plain", "größe.b"):
            rig.log(name)
        response = await pages_of(rig.engine).topics(asking(pattern=pattern))
    assert [topic["topic"] for topic in orjson.loads(response.body)["topics"]] == found
