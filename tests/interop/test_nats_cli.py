"""The `nats` command line asks our system account; skipped where it is not installed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest
from support.servers.system import SystemServer, on_loop

from broker.protocols.nats import limits

PROGRAM = shutil.which("nats", path=f"{os.environ['PATH']}:{Path.home() / 'go' / 'bin'}")
WAIT_S = 20

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no nats command")
# The program asks who it is only where the server's version says that it can tell.
_asks_for_users = pytest.mark.skipif(
    limits.NATS_VERSION.startswith("2.9."), reason="a version that cannot tell"
)


async def nats(server: SystemServer, *words: str, user: str = "sys:s", code: int = 0) -> str:
    """What it prints."""
    assert PROGRAM is not None
    host, port = server.address
    child = await asyncio.create_subprocess_exec(
        PROGRAM,
        *("--server", f"nats://{user}@{host}:{port}", "--timeout", "3s"),
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"},
    )
    out, _ = await asyncio.wait_for(child.communicate(), WAIT_S)
    assert child.returncode == code, out.decode()
    return out.decode()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("server ping 1", r"twin\s+rtt=[\d.]+.?s"),
        ("server list 1", r"│ twin +│ +│ [\w.]+ +│ 2\.\d+\.\d+ +│ no +│ 1 "),
        ("server info twin", r"Server information for twin \(N\w{55}\)"),
        ("server info twin", r"Max Payload: 1\.0 MiB"),
        ("server report connections 1", r"Top 1 Connections out of 1 by subs"),
        ("server report connections 1", r"│ NATS CLI[^│]+│ twin +│ +│ 127\.0\.0\.1:\d+ +│ SYS "),
        ("server report accounts", r"1 Accounts Overview"),
        ("server report accounts", r"│ SYS +│ 1 "),
        ("server report jetstream 1", r"│ twin +│ +│ 0 "),
        ("server check connection", r"^OK Connection OK:connected to nats://"),
        ("server check server --name twin", r"^OK twin"),
        ("server request variables 1", r'"data":\{"server_id":"N'),
        ("server request connections 1 --sort idle", r'"num_connections":1'),
        ("server request subscriptions 1 --detail", r'"subscriptions_list":\[\{"account"'),
        ("server request accounts 1", r'"system_account":"SYS"'),
        ("server request routes 1", r'"num_routes":0'),
        ("server request gateways 1", r'"outbound_gateways":\{\}'),
        ("server request leafnodes 1", r'"leafnodes":0'),
        ("server request jetstream 1", r'"disabled":true'),
        ("server request jetstream-health", r'"status":"ok"'),
        ("server request profile heap", r'Profile "heap" not found'),
        ("server account info A", r"Account information for account A"),
        pytest.param("account info", r"User: sys\s+Account: SYS", marks=_asks_for_users),
    ],
)
def test_commands(words: str, expected: str) -> None:
    @on_loop
    async def run() -> None:
        async with SystemServer() as server:
            out = await nats(server, *words.split())
        assert re.search(expected, out, re.MULTILINE), out

    run()


@on_loop
async def test_others_must_use_the_system_account() -> None:
    async with SystemServer() as server:
        out = await nats(server, "server", "list", "1", user="a:p", code=1)
        assert "ensure the account used has system privileges" in out


@on_loop
async def test_reload_and_kick() -> None:
    async with SystemServer() as server:
        me = server.server.server_id
        out = await nats(server, "server", "config", "reload", me, "--force")
        assert "Config Load Time" in out, out
        assert server.reloads == 1
        out = await nats(server, "server", "request", "kick", "99", me)
        assert "no such client or leafnode id" in out
