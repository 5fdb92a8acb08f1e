"""Backups of streams by `nats stream backup`: made here and restored in a nats-server, and back."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import pytest
from support.filled_streams import MATCHED, NEWEST, described, fill, original

if TYPE_CHECKING:
    from conftest import StartBroker

NATS = MATCHED.with_name("nats")
DEADLINE_S = 60
STREAMS = ("ORDERS", "BIG", "EMPTY", "CUT", "KV_cfg")

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.skipif(
        not (NEWEST.exists() and NATS.exists()), reason="no nats-server and no `nats` to ask"
    ),
]


def run(url: str, *words: str) -> str:
    done = subprocess.run(
        [NATS, "--server", url, "stream", *words],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def back_up(url: str, folder: Path) -> None:
    for name in STREAMS:
        run(url, "backup", name, str(folder / name), "--consumers", "--no-progress")


def restore(url: str, folder: Path) -> None:
    for name in STREAMS:
        run(url, "restore", str(folder / name), "--no-progress")


@pytest.mark.parametrize("way", ["to the original", "from the original", "to another broker"])
async def test_a_backup_is_restored_elsewhere(
    way: str, tmp_path: Path, start_broker: StartBroker
) -> None:
    broker = start_broker({"jetstream": {"enabled": True}})
    with original(tmp_path / "original", "") as url:
        one, other = broker.nats_url, url
        if way == "from the original":
            one, other = other, one
        elif way == "to another broker":
            other = start_broker({"jetstream": {"enabled": True}}, tmp_path / "other").nats_url
        before = await fill(one)
        back_up(one, tmp_path / "backups")
        restore(other, tmp_path / "backups")
        client = await nats.connect(other)
        after = await described(client)
        for found in (before, after):
            for name, each in found.items():
                if isinstance(name, tuple) or way == "from the original":
                    each.pop("created")  # the archives of 2.15 do not have it
                each["config"].pop("allow_msg_ttl", None)  # `nats` does not know it
        assert after == before
        js = client.jetstream()
        work = await js.pull_subscribe_bind("work", "ORDERS")
        fresh = await work.fetch(3)
        assert [m.metadata.num_delivered for m in fresh] == [1, 1, 1]
        assert (await js.publish("orders.9", b"new")).seq == 41
        assert (await js.publish("empty", b"new")).seq == 4
        assert (await js.publish("cut", b"new")).seq == 10
        await client.close()
