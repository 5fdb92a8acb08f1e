"""Mirrors and sources of streams of another server over a leaf link: ours, and the original."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from interop.test_leaf_jetstream import (
    DEADLINE_S,
    ORIGINAL,
    OURS,
    PAIRS,
    POLL_S,
    connected,
    needs_original,
    programs,
    use,
)
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

pytestmark = pytest.mark.only_ours
COUNT = 300


async def ask(js: JetStreamContext, verb: str, body: object = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    answer = await js._nc.request(f"{js._prefix}.{verb}", data, timeout=DEADLINE_S)
    return json.loads(answer.data)


async def publish(js: JetStreamContext, first: int, behind: int) -> None:
    for number in range(first, behind):
        headers = {"N": str(number), "Nats-Msg-Id": str(number)} if number % 2 else None
        await js.publish(f"o.{number % 3}", b"%d" % number, headers=headers)


async def messages(js: JetStreamContext, stream: str) -> list[tuple[Any, ...]]:
    """(seq, subject, body, headers but for the origin, time) of each."""
    found = []
    state = (await js.stream_info(stream)).state
    for seq in range(state.first_seq, state.last_seq + 1):
        answer = await ask(js, f"STREAM.MSG.GET.{stream}", {"seq": seq})
        if "message" in answer:
            message = await js.get_msg(stream, seq)
            headers = {k: v for k, v in (message.headers or {}).items() if "Stream-So" not in k}
            found.append((seq, message.subject, message.data, headers, answer["message"]["time"]))
    return found


async def until(js: JetStreamContext, stream: str, last: bytes) -> None:
    """Until the last message of a stream has this body."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            state = (await js.stream_info(stream)).state
            with contextlib.suppress(NotFoundError):  # the last one is still being stored
                if state.messages and (await js.get_msg(stream, state.last_seq)).data == last:
                    return
            await asyncio.sleep(POLL_S)


async def copy(origin: JetStreamContext, here: JetStreamContext, domain: str) -> None:
    """A mirror, a filtered mirror and two sources follow an origin."""
    await origin.add_stream(name="O", subjects=["o.*"])
    await publish(origin, 1, COUNT)
    for seq in (1, 5, 100):
        await origin.delete_msg("O", seq)
    external = {"api": f"$JS.{domain}.API"}
    configs: dict[str, Any] = {
        "M": {"mirror": {"name": "O", "external": external}},
        "MF": {"mirror": {"name": "O", "filter_subject": "o.1", "external": external}},
        "ML": {"mirror": {"name": "O", "opt_start_seq": 200, "external": external}},
        "S": {
            "sources": [
                {"name": "O", "filter_subject": "o.1", "external": {**external, "deliver": "d.x"}},
                {
                    "name": "O",
                    "subject_transforms": [{"src": "o.2", "dest": "moved.2"}],
                    "external": external,
                },
            ]
        },
    }
    for name, config in configs.items():
        answer = await ask(here, f"STREAM.CREATE.{name}", {"name": name, **config})
        assert "error" not in answer, answer
    await publish(origin, COUNT, COUNT + 2)  # ... 299, 300, 301
    await compare(origin, here, COUNT + 1)


async def compare(origin: JetStreamContext, here: JetStreamContext, last: int) -> None:
    wanted = await messages(origin, "O")
    ends = {kind: max(n for n in range(1, last + 1) if n % 3 == kind) for kind in range(3)}
    for name, end in (("M", last), ("MF", ends[1]), ("ML", last)):
        await until(here, name, b"%d" % end)
    assert await messages(here, "M") == wanted
    assert await messages(here, "MF") == [m for m in wanted if m[1] == "o.1"]
    assert await messages(here, "ML") == [m for m in wanted if m[0] >= 200]
    async with asyncio.timeout(DEADLINE_S):
        sourced = [m for m in wanted if m[1] != "o.0"]
        while (await here.stream_info("S")).state.messages < len(sourced):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    found = await messages(here, "S")
    by_body = sorted((int(m[2]), m[1].replace("moved", "o"), m[3]) for m in found)
    assert by_body == [(int(m[2]), m[1], m[3]) for m in sourced]
    info = await ask(here, "STREAM.INFO.S")
    assert {source["lag"] for source in info["sources"]} == {0}
    assert all(0 <= source["active"] < 20e9 for source in info["sources"])


@pytest.mark.parametrize(("hub", "leaf"), PAIRS)
async def test_streams_of_the_hub(tmp_path: Path, hub: str, leaf: str) -> None:
    with programs() as running:
        above, (below,) = await connected(running, tmp_path, hub, leaf)
        await copy(await use(above.url, "hub"), await use(below.url, "leaf0"), "hub")


@pytest.mark.parametrize(("hub", "leaf"), PAIRS)
async def test_streams_of_a_leaf(tmp_path: Path, hub: str, leaf: str) -> None:
    with programs() as running:
        above, (below,) = await connected(running, tmp_path, hub, leaf)
        await copy(await use(below.url, "leaf0"), await use(above.url, "hub"), "leaf0")


async def settled(js: JetStreamContext, stream: str, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await js.stream_info(stream)).state.messages < count:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


@pytest.mark.parametrize("leaf", [OURS, pytest.param(ORIGINAL, marks=needs_original)])
async def test_the_server_of_the_origin_is_killed(tmp_path: Path, leaf: str) -> None:
    with programs() as running:
        above, (below,) = await connected(running, tmp_path, OURS, leaf)
        here = await use(above.url, "hub")
        origin = await use(below.url, "leaf0")
        await copy(origin, here, "leaf0")
        await below.kill_and_start()
        origin = await use(below.url, "leaf0")
        kept = (await origin.stream_info("O")).state.last_seq
        # messages of the original that a kill took from its disk stay in ours
        await publish(origin, kept + 1, COUNT + 60)
        await until(here, "M", b"%d" % (COUNT + 59))
        if leaf == OURS:
            await compare(origin, here, COUNT + 59)


@pytest.mark.parametrize("hub", [OURS, pytest.param(ORIGINAL, marks=needs_original)])
async def test_the_server_of_the_copies_is_killed(tmp_path: Path, hub: str) -> None:
    """While it copies: nothing is missing afterwards, and nothing is there twice."""
    with programs() as running:
        above, (below,) = await connected(running, tmp_path, hub, OURS)
        origin = await use(above.url, "hub")
        await copy(origin, await use(below.url, "leaf0"), "hub")
        last = COUNT + 1
        for _ in range(3):
            publishing = asyncio.create_task(publish(origin, last + 1, last + 151))
            await below.kill_and_start()
            await publishing
            last += 150
        await compare(origin, await use(below.url, "leaf0"), last)
