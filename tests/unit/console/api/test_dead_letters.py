"""Dead letters: groups, and the way back: all, selected ones, with a rate, stopped."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.console import DEADLINE_S, Console, console
from support.engine import CREATE

from broker.engine.cursor.cursor import cursors_of, open_cursor
from broker.engine.log.publish import append, settled
from broker.runtime import vfs

DEAD = "/v1/dead-letters/o.dead"


def heads(channel: str, reason: str) -> bytes:
    return (
        f"NATS/1.0\r\nTwinwire-Topic: o\r\nTwinwire-Channel: {channel}\r\n"
        f"Twinwire-Reason: {reason}\r\n\r\n"
    ).encode()


async def dead(broker: Console, *letters: tuple[str, str]) -> None:
    """Dead letters of topic o, numbered from 1: channel and reason."""
    open_cursor(broker.log("o"), "c")
    log, ticket = broker.log("o.dead"), 0
    for number, (channel, reason) in enumerate(letters, 1):
        ticket = append(log, b"%d" % number, headers=heads(channel, reason))
    await settled(log, ticket)


async def ended(
    broker: Console, is_so: Callable[[Any], bool] = lambda job: not job["running"]
) -> Any:
    """The job once it has ended, or is as expected."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            job = (await broker.get(DEAD))["requeue"]
            if is_so(job):
                return job
            await asyncio.sleep(0.01)


async def bodies(broker: Console, topic: str) -> list[str]:
    return [row["body"] for row in (await broker.get(f"/v1/topics/{topic}/messages"))["messages"]]


async def test_groups(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await dead(
            broker, ("c", "attempts"), ("c", "too_big"), ("c", "attempts"), ("d", "attempts")
        )
        for has_channel in (False, True):
            if has_channel:
                open_cursor(broker.log("o.dead"), "requeue")
            page = await broker.get(DEAD)
            assert (page["waiting"], page["complete"]) == (4, True)
            found = {(g["reason"], g["origin_channel"]): g["seqs"] for g in page["groups"]}
            assert found == {
                ("attempts", "c"): [1, 3],
                ("too_big", "c"): [2],
                ("attempts", "d"): [4],
            }
            assert page["groups"][0]["sample"]["body"] == "1"
        short = await broker.get(DEAD, scan=2)
        assert (short["scanned"], short["complete"]) == (2, False)
        listed = (await broker.get("/v1/dead-letters"))["topics"]
        assert listed == [{"topic": "o.dead", "messages": 4}]


async def test_all_go_back(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await dead(broker, *[("c", "attempts")] * 5)
        job = await broker.change("POST", f"{DEAD}/requeue", {})
        assert job["total"] == 5
        job = await ended(broker)
        assert (job["moved"], job["kept"], job["failed"]) == (5, 0, "")
        assert await bodies(broker, "o") == ["1", "2", "3", "4", "5"]
        assert (await broker.get(DEAD))["waiting"] == 0


async def test_selected_ones_go_back(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await dead(broker, *[("c", "attempts")] * 5)
        await broker.change("POST", f"{DEAD}/requeue", {"seqs": [4, 2]})
        assert (await ended(broker))["moved"] == 2
        assert await bodies(broker, "o") == ["2", "4"]
        page = await broker.get(DEAD)
        assert page["waiting"] == 3
        assert page["groups"][0]["seqs"] == [1, 3, 5]


async def test_selected_ones_that_are_gone_do_not_keep_the_others(tmp_path: Path) -> None:
    """Also if all of one part are gone: the rate makes parts of one message."""
    async with console(tmp_path) as broker:
        await dead(broker, *[("c", "attempts")] * 5)
        await broker.change("POST", f"{DEAD}/requeue", {"seqs": [1, 2]})
        await ended(broker)
        await broker.change("POST", f"{DEAD}/requeue", {"seqs": [1, 2, 4], "rate": 1.9})
        job = await ended(broker)
        assert (job["total"], job["moved"], job["kept"], job["failed"]) == (3, 1, 0, "")
        assert await bodies(broker, "o") == ["1", "2", "4"]


async def test_those_without_an_origin_stay(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        letters = [("gone", "attempts")] * 3 + [("c", "attempts")] * 2
        await dead(broker, *letters)
        await broker.change("POST", f"{DEAD}/requeue", {"rate": 1000})
        job = await ended(broker)
        assert (job["moved"], job["kept"]) == (2, 3)
        assert (await broker.get(DEAD))["waiting"] == 3


async def test_with_a_limit_and_a_rate(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await dead(broker, *[("c", "attempts")] * 5)
        await broker.change("POST", f"{DEAD}/requeue", {"limit": 2})
        assert (await ended(broker))["moved"] == 2
        job = await broker.change("POST", f"{DEAD}/requeue", {"rate": 0.001})
        assert job["running"]
        busy = await broker.ask("POST", f"{DEAD}/requeue", {})
        assert (busy.status, busy.json["code"]) == (409, "BUSY")
        await ended(broker, lambda job: job["moved"] == 1)
        job = await broker.change("DELETE", f"{DEAD}/requeue")
        assert (job["running"], job["moved"], job["failed"]) == (False, 1, "stopped")
        assert len(cursors_of(broker.log("o.dead"))) == 1
        assert await bodies(broker, "o") == ["1", "2", "3"]


async def test_a_channel_that_cannot_be_made_leaves_no_job_behind(tmp_path: Path) -> None:
    async with console(tmp_path) as broker:
        await dead(broker, ("c", "attempts"))
        vfs.fail(CREATE, errno.ENOSPC)
        try:
            assert (await broker.ask("POST", f"{DEAD}/requeue", {})).status >= 500
            assert not vfs.unfired(CREATE)
        finally:
            vfs.heal()
        await broker.change("POST", f"{DEAD}/requeue", {})
        assert (await ended(broker))["moved"] == 1
