"""Clients of JetStream go on at our server where a nats-server has left off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import pytest
from support.filled_streams import MATCHED, NEWEST, described, fill, original

if TYPE_CHECKING:
    from conftest import StartBroker

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60
KEY = "correct horse battery staple"
CIPHERS = {
    "plain": "",
    "chacha": f', cipher: chacha, key: "{KEY}"',
    "aes": f', cipher: aes, key: "{KEY}"',
}

pytestmark = [
    pytest.mark.only_ours,
    pytest.mark.skipif(
        not (NEWEST.exists() and MATCHED.exists()), reason="no nats-server to import from"
    ),
]


def take_over(source: Path, data: Path, *flags: str, code: int = 0) -> str:
    for path in source.rglob("*.blk"):
        os.utime(path, (1, 1))  # no import of what was written a moment ago
    done = subprocess.run(
        [sys.executable, "-m", "broker", "import-jetstream", str(source), "--data", str(data),
         "--quiet", "--key-file", "-", *flags],
        capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, check=False, input=f"{KEY}\n",
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("cipher", "program"), [*((cipher, NEWEST) for cipher in CIPHERS), ("plain", MATCHED)]
)
async def test_streams_and_consumers_go_on_where_they_were(
    cipher: str, program: Path, tmp_path: Path, start_broker: StartBroker
) -> None:
    folder, data = tmp_path / "original", tmp_path / "data"
    with original(folder, CIPHERS[cipher], program) as url:
        before = await fill(url)
    source = folder / "store"
    assert len(list(source.rglob("BIG/msgs/*.blk"))) > 1
    kept = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    said = take_over(source, data, "--dry-run")
    assert "5 streams" in said
    assert not (data / "logs").exists()
    assert take_over(source, data) == said.replace("found", "imported")
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == kept
    assert "was imported before" in take_over(source, data)
    broker = start_broker({"jetstream": {"enabled": True}}, data)
    client = await nats.connect(broker.nats_url)
    assert await described(client) == before
    js = client.jetstream()
    work = await js.pull_subscribe_bind("work", "ORDERS")
    fresh = await work.fetch(3)
    assert [m.metadata.num_delivered for m in fresh] == [1, 1, 1]
    assert (await js.publish("orders.9", b"new")).seq == 41
    assert (await js.publish("empty", b"new")).seq == 4
    assert (await (await js.key_value("cfg")).get("k4")).value == b"19"
    await client.close()
