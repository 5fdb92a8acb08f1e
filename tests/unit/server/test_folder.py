"""A data folder that is removed or replaced under a running server is a problem on /healthz."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from broker.base.lockfile import LOCK_NAME
from broker.config.load import load
from broker.server import limits
from broker.server.folder import REASON
from broker.server.server import Server

WAIT_S = 30.0


async def until_health_is(server: Server, expected: str | None) -> None:
    """Wait until the server's first problem is this one."""
    async with asyncio.timeout(WAIT_S):
        while server.health() != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("case", ["removed", "replaced", "lock removed", "lock replaced"])
def test_it_is_a_problem_until_it_is_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    case: str,
) -> None:
    monkeypatch.setattr(limits, "FOLDER_PERIOD_S", 0.01)
    data, aside = tmp_path / "data", tmp_path / "aside"
    config = load(environment={"TWINWIRE_SERVER_DATA": str(data)})

    async def run() -> None:
        server = Server(config, factories=())
        await server.start()
        assert server.health() is None
        moved = data if case in ("removed", "replaced") else data / LOCK_NAME
        moved.rename(aside)
        if case == "replaced":
            shutil.copytree(aside, data)
        elif case == "lock replaced":
            shutil.copy(aside, moved)
        await until_health_is(server, f"data folder {data}: {REASON}")
        if case == "replaced":
            shutil.rmtree(data)
        aside.rename(moved)
        await until_health_is(server, None)
        await server.stop()

    with caplog.at_level("INFO"):
        asyncio.run(run())
    lines = [record for record in caplog.records if "data folder" in record.getMessage()]
    assert [record.levelname for record in lines] == ["ERROR", "INFO"]


def test_a_server_in_memory_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLDER_PERIOD_S", 0.01)

    async def run() -> None:
        server = Server(load(), factories=(), in_memory=True)
        await server.start()
        await asyncio.sleep(0.05)
        assert server.health() is None
        await server.stop()

    asyncio.run(run())
