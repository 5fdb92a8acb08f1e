"""Counters that sum those of other streams: Twinwire and nats-server store the same."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from support import jetstream_pair
from support.jetstream_pair import WAIT_S, clients

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from conftest import StartBroker


pytestmark = jetstream_pair.MARKS


class Client(jetstream_pair.Client):
    """Makes counters and adds to them."""

    async def counter(self, name: str, **config: Any) -> Any:
        body = {"name": name, "allow_msg_counter": True, **config}
        answer = await self.api(f"STREAM.CREATE.{name}", body)
        assert "error" not in answer, answer
        return answer

    async def add(self, subject: str, increment: int | str) -> Any:
        headers = {"Nats-Incr": str(increment)}
        answer = await self.nc.request(subject, b"", headers=headers, timeout=WAIT_S)
        return json.loads(answer.data)

    async def last(self, stream: str) -> int:
        return int((await self.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])

    async def messages(self, stream: str, many: int) -> list[tuple[str, str, list[str]]]:
        """Subject, body and headers of the messages, once there are so many."""
        async with asyncio.timeout(WAIT_S):
            while await self.last(stream) < many:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        found = []
        for seq in range(1, many + 1):
            answer = await self.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
            message = answer["message"]
            head = base64.b64decode(message["hdrs"]).decode().split("\r\n")
            # the original also says which origin of that name it was
            lines = [" ".join(line.split(" ")[:6]) for line in head if line]
            body = base64.b64decode(message["data"]).decode()
            found.append((message["subject"], body, sorted(lines)))
        return found


@pytest.fixture
async def pair(tmp_path: Path, start_broker: StartBroker) -> AsyncIterator[list[Client]]:
    """Clients of an original and of our server."""
    async with clients(Client, tmp_path, start_broker) as found:
        yield found


def source(name: str, subject: str) -> dict[str, Any]:
    return {"name": name, "subject_transforms": [{"src": subject, "dest": "sum"}]}


async def test_sums_of_two_streams(pair: list[Client]) -> None:
    found = []
    for client in pair:
        await client.counter("A", subjects=["a.*"])
        await client.counter("B", subjects=["b.*"])
        sources = [source("A", "a.*"), source("B", "b.*")]
        await client.counter("SUM", sources=sources, subjects=["sum"])
        answers = []
        for number, (subject, increment) in enumerate(
            [("a.x", 1), ("b.x", 2), ("a.x", "+10"), ("a.y", -3), ("b.x", "0"), ("sum", 100),
             ("b.x", 10**30), ("a.y", 3), ("sum", -7)], start=1
        ):  # fmt: skip
            answers.append((await client.add(subject, increment))["val"])
            await client.messages("SUM", number)
        found.append((answers, await client.messages("SUM", 9)))
    assert found[0] == found[1]
    *_, (subject, body, headers) = found[1][1]
    assert (subject, json.loads(body)) == ("sum", {"val": str(10**30 + 106)})
    assert any(line.startswith("Nats-Counter-Sources: ") for line in headers)


async def test_what_a_source_had_before(pair: list[Client]) -> None:
    """Only its last value is there; later it begins again."""
    found = []
    for client in pair:
        await client.counter("A", subjects=["a.*"], max_msgs_per_subject=1)
        for _ in range(5):
            await client.add("a.x", 2)
        await client.counter("SUM", sources=[source("A", "a.*")])
        await client.messages("SUM", 1)
        await client.add("a.x", 1)
        await client.messages("SUM", 2)
        await client.api("STREAM.PURGE.A")
        await client.add("a.x", 4)
        found.append(await client.messages("SUM", 3))
    assert found[0] == found[1]
    assert [json.loads(body)["val"] for _, body, _ in found[1]] == ["10", "11", "4"]


async def test_sums_of_sums(pair: list[Client]) -> None:
    """Subjects keep their names, and a stream in the middle has sums of its own."""
    found = []
    for client in pair:
        await client.counter("A", subjects=["n.a"])
        await client.counter("MID", sources=[{"name": "A"}], subjects=["n.m"])
        await client.counter("TOP", sources=[{"name": "MID"}])
        for number, (subject, increment) in enumerate(
            [("n.a", 1), ("n.m", 5), ("n.a", 2), ("n.m", 6)], start=1
        ):
            await client.add(subject, increment)
            await client.messages("TOP", number)
        found.append(await client.messages("TOP", 4))
    assert found[0] == found[1]


async def test_a_source_without_counters(pair: list[Client]) -> None:
    """It cannot be summed: the source waits, and the counters go on."""
    for client in pair:
        await client.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"]})
        await client.counter("SUM", sources=[{"name": "A"}], subjects=["sum"])
        await client.nc.request("a", b"text", timeout=WAIT_S)
        assert (await client.add("sum", 5))["val"] == "5"
        assert await client.last("SUM") == 1


async def test_sums_are_the_same_after_a_start(tmp_path: Path, start_broker: StartBroker) -> None:
    """Ours alone: what is known of the sources is in the messages."""
    broker = start_broker({"jetstream": {"enabled": True}})
    client = await Client(broker.nats_url).connect()
    await client.counter("A", subjects=["a.*"])
    await client.counter("SUM", sources=[source("A", "a.*")], subjects=["sum"])
    for number in range(1, 4):
        await client.add("a.x", number)
    await client.messages("SUM", 3)
    await client.nc.close()
    broker.restart()
    client = await Client(broker.nats_url).connect()
    await client.add("a.x", 10)
    assert json.loads((await client.messages("SUM", 4))[3][1]) == {"val": "16"}
    assert (await client.add("sum", 1))["val"] == "17"
    await client.nc.close()
