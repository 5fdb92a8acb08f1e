"""JetStream of other servers over leaf nodes, by domains: among ours, and with the original.

A leaf's clients use the hub's streams, the hub's clients those of the leaf, and a leaf's those of
another leaf. Messages keep their subjects, though they are delivered to inboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.errors import ServiceUnavailableError
from support.filled_streams import MATCHED, NEWEST

CLI = MATCHED.with_name("nats")
OURS, ORIGINAL = "ours", "original"
DEADLINE_S = 30.0
POLL_S = 0.02

pytestmark = pytest.mark.only_ours
needs_original = pytest.mark.skipif(not NEWEST.exists(), reason="no nats-server")
PAIRS = [
    (OURS, OURS),
    pytest.param(OURS, ORIGINAL, marks=needs_original),
    pytest.param(ORIGINAL, OURS, marks=needs_original),
]


class Program:
    """A nats-server, ours or the original; `leaf`: the port for leaf nodes."""

    def __init__(self, kind: str, folder: Path, name: str, leafnodes: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        file = self.folder / "server.conf"
        file.write_text(
            f'server_name: {name}\nlisten: "127.0.0.1:-1"\nports_file_dir: "{self.folder}"\n'
            f'jetstream {{ store_dir: "{self.folder}", domain: {name} }}\n'
            f"leafnodes {{ reconnect: 1, {leafnodes} }}\n"
        )
        command = [sys.executable, "-m", "broker", "nats-server"] if kind == OURS else [NEWEST]
        self.command = [*command, "-c", str(file)]
        self.log = (self.folder / "log").open("wb")
        self.start()

    def start(self) -> None:
        self.url = self.leaf = ""
        self.child = subprocess.Popen(
            self.command, stdout=self.log, stderr=self.log, cwd=self.folder
        )

    async def kill_and_start(self) -> None:
        """Kill it, start it again, and wait until it is ready."""
        self.child.kill()
        self.child.wait()
        for old in self.folder.glob("nats-server_*.ports"):
            old.unlink(missing_ok=True)
        self.start()
        await self.ready()

    async def ready(self) -> None:
        """Wait until it has written its ports."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.url:
                with contextlib.suppress(StopIteration, OSError, ValueError):
                    page = json.loads(next(self.folder.glob("nats-server_*.ports")).read_text())
                    self.url, *_ = page["nats"]
                    self.leaf = (page.get("leafnodes") or [""])[0]
                await asyncio.sleep(POLL_S)
        if not self.leaf:  # the original does not list it
            text = (self.folder / "log").read_text()
            mark = "leafnode connections on "
            self.leaf = f"nats-leaf://{text.partition(mark)[2].split()[0]}" if mark in text else ""

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        self.log.close()


@contextlib.contextmanager
def programs() -> Iterator[list[Program]]:
    found: list[Program] = []
    try:
        yield found
    finally:
        for each in found:
            each.end()


async def connected(
    running: list[Program], folder: Path, hub: str, *leafs: str
) -> tuple[Program, list[Program]]:
    """A hub with leafs called leaf0, leaf1, ..., each of this kind."""
    above = Program(hub, folder, "hub", 'listen: "127.0.0.1:-1"')
    running.append(above)
    await above.ready()
    below = []
    for number, kind in enumerate(leafs):
        url = above.leaf.replace("nats://", "nats-leaf://")
        one = Program(kind, folder, f"leaf{number}", f'remotes [ {{ url: "{url}" }} ]')
        running.append(one)
        await one.ready()
        below.append(one)
    return above, below


async def use(url: str, domain: str) -> JetStreamContext:
    """JetStream of this domain, as soon as it answers."""
    client = await nats.connect(url)
    js = client.jetstream(domain=domain, timeout=DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                assert (await js.account_info()).domain == domain
            except (NoRespondersError, ServiceUnavailableError):
                await asyncio.sleep(POLL_S)
            else:
                return js


async def work(js: JetStreamContext, domain: str) -> None:
    """Publish, pull with confirmed acks, push in order, with a stream of another server."""
    expected = [(f"{domain}.{n}", b"%d" % n, str(n), n + 1) for n in range(3)]
    await js.add_stream(name="WORK", subjects=[f"{domain}.>"])
    for number in range(3):
        answer = await js.publish(f"{domain}.{number}", b"%d" % number, headers={"N": str(number)})
        assert (answer.stream, answer.seq, answer.domain) == ("WORK", number + 1, domain)
    reader = await js.pull_subscribe(f"{domain}.>", durable="reader", stream="WORK")
    messages = await reader.fetch(3, timeout=DEADLINE_S)
    assert [seen(message) for message in messages] == expected
    for message in messages:
        await message.ack_sync(timeout=DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):  # nats-server confirms before its INFO knows
        info = await js.consumer_info("WORK", "reader")
        while (info.ack_floor.stream_seq, info.num_ack_pending) != (3, 0):
            info = await js.consumer_info("WORK", "reader")
    ordered = await js.subscribe(f"{domain}.>", stream="WORK", ordered_consumer=True)
    pushed = [await ordered.next_msg(DEADLINE_S) for _ in range(3)]
    assert [seen(message) for message in pushed] == expected
    await js._nc.close()


def seen(message: Any) -> tuple[str, bytes, str, int]:
    return (
        message.subject, message.data, message.headers["N"], message.metadata.sequence.stream,
    )  # fmt: skip


@pytest.mark.parametrize(("hub", "leaf"), PAIRS)
async def test_streams_of_the_other_server(tmp_path: Path, hub: str, leaf: str) -> None:
    with programs() as running:
        above, (below,) = await connected(running, tmp_path, hub, leaf)
        await work(await use(below.url, "hub"), "hub")
        await work(await use(above.url, "leaf0"), "leaf0")
        for one, line in ((above, 'hub", remote "leaf0'), (below, 'leaf0", remote "hub')):
            assert f'JetStream using domains: local "{line}"' in (one.folder / "log").read_text()
        # each has streams of its own, which the other does not see
        own = await use(below.url, "leaf0")
        assert [info.config.name for info in await own.streams_info()] == ["WORK"]
        await own._nc.close()


@pytest.mark.parametrize("hub", [OURS, pytest.param(ORIGINAL, marks=needs_original)])
async def test_streams_of_another_leaf(tmp_path: Path, hub: str) -> None:
    """A delivered message crosses two links."""
    with programs() as running:
        _, (one, _other) = await connected(running, tmp_path, hub, OURS, OURS)
        await work(await use(one.url, "leaf1"), "leaf1")


@pytest.mark.skipif(not CLI.exists(), reason="no `nats` to ask")
@pytest.mark.parametrize(("hub", "leaf"), PAIRS)
async def test_buckets_and_objects_of_the_hub(tmp_path: Path, hub: str, leaf: str) -> None:
    with programs() as running:
        _, (below,) = await connected(running, tmp_path, hub, leaf)
        await (await use(below.url, "hub"))._nc.close()

        def ask(*words: str) -> str:
            command = [CLI, "--server", below.url, "--js-domain", "hub", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        content = tmp_path / "content"
        content.write_bytes(b"0123456789abcdef" * 20_000)
        for words in (("kv", "add", "b"), ("kv", "put", "b", "k", "v"), ("object", "add", "o")):
            await asyncio.to_thread(ask, *words)
        assert (await asyncio.to_thread(ask, "kv", "get", "b", "k", "--raw")).strip() == "v"
        put = ("object", "put", "o", str(content), "--name", "n", "--no-progress", "--force")
        await asyncio.to_thread(ask, *put)
        got = tmp_path / "got"
        get = ("object", "get", "o", "n", "-O", str(got), "--no-progress", "--force")
        await asyncio.to_thread(ask, *get)
        assert got.read_bytes() == content.read_bytes()
