"""Streams with all that a copy of them must not lose: made on a server, described for comparison.

Servers are the broker's or a nats-server of `make originals`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig

ROOT = Path(__file__).resolve().parents[2]
NEWEST = ROOT / ".originals" / "newest" / "nats-server"
MATCHED = ROOT / ".originals" / "bin" / "nats-server"
START_S = 20.0
COUNT = 12_000  # messages of the large stream: several blocks
CONFIG = """
listen: "127.0.0.1:-1"
ports_file_dir: "{folder}"
jetstream {{ store_dir: "{folder}/store" {extra} }}
"""


@contextmanager
def original(folder: Path, extra: str, program: Path = NEWEST) -> Iterator[str]:
    """A nats-server with JetStream; its URL."""
    folder.mkdir()
    (folder / "server.conf").write_text(CONFIG.format(folder=folder, extra=extra))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([program, "-c", folder / "server.conf"], stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not (found := [p.read_text() for p in folder.glob("*.ports")]) or not found[0]:
            assert time.monotonic() < deadline
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"it ended with {server.wait(0.01)}: {(folder / 'log').read_text()}")
        yield json.loads(found[0])["nats"][0]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


async def fill(url: str) -> dict[str, Any]:
    """Streams and consumers with all that an import must not lose; what they then look like."""
    client = await nats.connect(url)
    js = client.jetstream()
    for config in (
        {"name": "ORDERS", "subjects": ["orders.>"], "max_msgs_per_subject": 5},
        {"name": "BIG", "subjects": ["big"], "compression": "s2", "max_bytes": 20_000_000},
        {"name": "EMPTY", "subjects": ["empty"]},
        {"name": "CUT", "subjects": ["cut"]},
    ):
        # Blocks are compressed when they are full, and smaller with small streams.
        await request(client, f"STREAM.CREATE.{config['name']}", config)
    for i in range(40):
        await js.publish(
            f"orders.{i % 4}", b"order %d" % i, headers={"N": str(i)} if i % 3 else None
        )
    for seq in (22, 23, 30):
        await js.delete_msg("ORDERS", seq)
    await request(client, "STREAM.PURGE.ORDERS", {"filter": "orders.2"})
    for i in range(COUNT):
        await client.publish("big", b"%d " % i * 200)
    await js.publish("big", b"last")
    for _ in range(3):
        await js.publish("empty", b"gone")
    await js.purge_stream("EMPTY")
    for _ in range(9):
        await js.publish("cut", b"")
    for seq in (4, 7, 8, 9):  # the newest, too
        await js.delete_msg("CUT", seq)
    work = await js.pull_subscribe(
        "orders.>", "work", "ORDERS", config=ConsumerConfig(ack_wait=3600, max_ack_pending=50)
    )
    taken = await work.fetch(8)
    for message in (taken[0], taken[1], taken[5]):
        await message.ack_sync()
    await client.request(taken[2].reply, b"-NAK")  # its answer: from now on it is due again
    (again,) = await work.fetch(1)
    assert again.metadata.num_delivered == 2
    bucket = await js.create_key_value(bucket="cfg", history=3)
    for i in range(20):
        await bucket.put(f"k{i % 5}", b"%d" % i)
    await bucket.delete("k1")
    found = await described(client)
    await client.close()
    return found


async def request(client: Any, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = json.loads((await client.request(f"$JS.API.{verb}", json.dumps(body).encode())).data)
    assert "error" not in answer, answer
    return answer


async def described(client: Any) -> dict[str, Any]:
    """All streams with their states and messages, all consumers with their places."""
    js = client.jetstream()
    found: dict[str, Any] = {}
    for name in (await request(client, "STREAM.NAMES", {}))["streams"]:
        info = await request(
            client, f"STREAM.INFO.{name}", {"deleted_details": True, "subjects_filter": ">"}
        )
        state = info["state"]
        if not state["messages"] or state["last_seq"] in state.get("deleted", ()):
            del state["last_ts"]  # that of the import
        found[name] = {"created": info["created"], "state": state, "config": _set(info["config"])}
        found[name]["messages"] = [
            (m.seq, m.subject, m.data, m.headers, m.time)
            for seq in range(
                state["first_seq"], min(state["last_seq"], state["first_seq"] + 60) + 1
            )
            if seq not in state.get("deleted", ())
            for m in [await js.get_msg(name, seq)]
        ]
        for consumer in (await request(client, f"CONSUMER.LIST.{name}", {}))["consumers"] or ():
            found[name, consumer["name"]] = {
                "created": consumer["created"][:16],  # 2.10 stores another fraction than it shows
                "config": _set(consumer["config"]),
                "delivered": _pair(consumer["delivered"]),
                "ack_floor": _pair(consumer["ack_floor"]),
                **{k: consumer[k] for k in ("num_ack_pending", "num_redelivered", "num_pending")},
            }
    return found


def _set(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that are not off; which of these a server lists depends on its version."""
    return {key: value for key, value in config.items() if value and key != "metadata"}


def _pair(info: dict[str, int]) -> tuple[int, int]:
    return info["consumer_seq"], info["stream_seq"]
