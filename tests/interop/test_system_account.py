"""The system account with real clients, against what the original said in the same session."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg
from support import RawPeer
from support.nats_file import FileServer
from support.servers.system import SystemServer, on_loop
from support.system_account import CONFIG, SystemSession

ROOT = Path(__file__).parents[2]
LISTENING = re.compile(rb"client connections on ([\d.]+):(\d+)")
GOLDEN = Path(__file__).parents[1] / "golden" / "nats_system.json"


@on_loop
async def test_a_whole_session() -> None:
    async with SystemServer() as server:
        found = await SystemSession(server.address).run()
    assert _differences(found) == {}


@on_loop
async def test_the_same_of_the_command(tmp_path: Path) -> None:
    """With a configuration file, which a request lets it read again."""
    config = tmp_path / "n.conf"
    config.write_text(CONFIG)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "broker", "nats-server", "-c", config),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert child.stderr is not None
        while not (found := LISTENING.search(await child.stderr.readline())):
            assert not child.stderr.at_eof()
        address = found[1].decode(), int(found[2])
        session = SystemSession(address)
        assert _differences(await session.run()) == {}
        config.write_text(CONFIG + "nonsense: 1\n")
        client = await session.connect("sys", "s")
        subject = f"$SYS.REQ.SERVER.{session.id}.RELOAD"
        answer = json.loads((await client.request(subject, timeout=10)).data)
        assert answer["error"]["code"] == 500
        assert "nonsense" in answer["error"]["description"]
        await client.close()
    finally:
        child.terminate()
        await child.communicate()


def _differences(found: Mapping[str, object]) -> dict[str, object]:
    expected = json.loads(GOLDEN.read_text())
    assert list(found) == list(expected)
    return {s: (found[s], expected[s]) for s in expected if not _same(found[s], expected[s])}


def _same(found: object, expected: object) -> bool:
    """Equal, the order of names included."""
    return json.dumps(found) == json.dumps(expected)


CONNECTS = 500


@on_loop
async def test_a_storm_of_connects() -> None:
    async with SystemServer() as server:
        session = SystemSession(server.address)
        sys = await session.connect("sys", "s")
        kinds: list[str] = []
        events = await sys.subscribe("$SYS.ACCOUNT.B.>")
        await sys.flush()
        writers = [await hello(server.address) for _ in range(CONNECTS)]
        count = 0
        while kinds.count("CONNECT") < CONNECTS or count < CONNECTS:
            message = await events.next_msg(timeout=10)
            kinds.append(message.subject.rpartition(".")[2])
            if kinds[-1] == "CONNS":
                count = json.loads(message.data)["conns"]
        assert kinds.count("CONNECT") == CONNECTS
        assert kinds.count("CONNS") <= CONNECTS
        for writer in writers:
            writer.close()
        await sys.close()


async def hello(address: tuple[str, int]) -> asyncio.StreamWriter:
    """A client of account B, without waiting for answers."""
    _reader, writer = await asyncio.open_connection(*address)
    writer.write(b'CONNECT {"user":"b","pass":"p","verbose":false}\r\n')
    return writer


@on_loop
async def test_the_last_word() -> None:
    """SHUTDOWN reaches those who listen before they are closed."""
    heard: asyncio.Queue[Msg] = asyncio.Queue()
    async with SystemServer() as server:
        sys = await SystemSession(server.address).connect("sys", "s")
        await sys.subscribe("$SYS.SERVER.*.SHUTDOWN", cb=heard.put)
        await sys.flush()
    message = await asyncio.wait_for(heard.get(), 10)
    block = json.loads(message.data)
    assert list(block) == [
        "name", "host", "id", "ver", "tags", "feature_flags", "jetstream", "flags", "seq", "time",
    ]  # fmt: skip
    assert block["name"] == "twin"


def test_a_server_with_jetstream(start_nats: Callable[[str], FileServer], tmp_path: Path) -> None:
    """What the server blocks, STATSZ, VARZ and JSZ say of it, to a client of the system account."""
    store = tmp_path / "js"
    users = "system_account: S\naccounts { S { users: [{user: s, password: s}] } }\n"
    server = start_nats(f'{users}jetstream {{ store_dir: "{store}", sync_interval: always }}\n')
    with RawPeer(server.address, skips_pings=True) as peer:
        peer.read_line()
        peer.send(b'CONNECT {"user":"s","pass":"s","verbose":false}\r\nSUB in 1\r\n')

        def ask(what: str) -> Any:
            peer.send(b"PUB $SYS.REQ.SERVER.PING.%s in 0\r\n\r\n" % what.encode())
            size = int(peer.read_line().split()[3])
            return json.loads(peer.read_exact(size + 2))

        stats = ask("STATSZ")
        assert (stats["server"]["jetstream"], stats["server"]["flags"]) == (True, 7)
        config = stats["statsz"]["jetstream"]["config"]
        assert "store_dir" not in config
        for block in (
            config,
            ask("VARZ")["data"]["jetstream"]["config"],
            ask("JSZ")["data"]["config"],
        ):
            assert (block["sync_interval"], block["sync_always"]) == (120_000_000_000, True)
