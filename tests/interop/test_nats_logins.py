"""The table of logins, asked of nats-server itself: what is expected is what it does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.logins.operator import CASES as OPERATOR_CASES
from support.logins.table import CASES, Case
from support.servers.originals import nats_server_on_path

from tests.behaviour.test_nats_logins import attempt, expected

DEADLINE_S = 20

pytestmark = pytest.mark.skipif(
    not nats_server_on_path(), reason="no nats-server that tests can compare with"
)


async def serve(folder: Path, config: str) -> tuple[asyncio.subprocess.Process, tuple[str, int]]:
    """nats-server, ready."""
    path = folder / "server.conf"
    path.write_text(f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n{config}\n')
    process = await asyncio.create_subprocess_exec(
        "nats-server", "-c", str(path), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async for line in process.stderr:
        if b"Server is ready" in line:
            break
    else:
        raise AssertionError("nats-server did not start")
    ports = folder / f"nats-server_{process.pid}.ports"
    while not (ports.exists() and ports.read_bytes().endswith(b"}")):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    address = json.loads(ports.read_text())["nats"][0].removeprefix("nats://").split(":")
    return process, (address[0], int(address[1]))


async def check(folder: Path, case: Case) -> None:
    process, address = await serve(folder, case.config)
    try:
        for one in case.tries:
            info, answer = await attempt(address, one)
            assert answer == expected(one), one.name
            assert info.get("auth_required", False) == case.required, one.name
            assert ("nonce" in info) == case.nonce, one.name
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("case", CASES + OPERATOR_CASES, ids=lambda case: case.name)
async def test_logins_of_the_original(tmp_path: Path, case: Case) -> None:
    await asyncio.wait_for(check(tmp_path, case), DEADLINE_S)
