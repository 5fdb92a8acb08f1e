"""What consumers get of an imported folder: their own backlog alone, with its times and tries."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop
from support.engine import Rig
from support.nsqd_folder import describe, put, record

from broker.config.config import Config
from broker.engine.cursor.local import LocalConsumer
from broker.importers.nsqd import Import

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 30
FLAGS = ["-tcp-address=127.0.0.1:0", "-http-address=", "-max-msg-size=4000000"]


class Consumer:
    """One connection, subscribed."""

    def __init__(self, address: str, topic: str, channel: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), DEADLINE_S)
        self.file = self.socket.makefile("rb")
        self.socket.sendall(f"  V2SUB {topic} {channel}\nRDY 100\n".encode())
        assert self.frame() == (0, b"OK")

    def frame(self) -> tuple[int, bytes]:
        size, kind = struct.unpack(">ii", self.file.read(8))
        return kind, self.file.read(size - 4)

    def take(self, count: int) -> list[tuple[int, int, bytes]]:
        """(time, attempts, body) of so many messages, which are then finished."""
        found = []
        while len(found) < count:
            kind, payload = self.frame()
            if kind == 2:
                timestamp_ns, attempts = struct.unpack(">qH", payload[:10])
                found.append((timestamp_ns, attempts, payload[26:]))
                self.socket.sendall(b"FIN " + payload[10:26] + b"\n")
        return found

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.mark.parametrize("restarts", [0, 1])
def test_consumers_get_their_own(tmp_path: Path, restarts: int) -> None:
    describe(tmp_path, t={"channels": ["a", "b", "c"]})
    put(tmp_path, "t:a", record(b"a1", 0, 11) + record(b"a2", 3, 12) + record(b"a3", 0, 13))
    put(tmp_path, "t:b", record(b"b1", 65535, 14) + record(b"x" * 3_000_000, 0, 15))
    put(tmp_path, "t", record(b"all", 0, 16))
    for turn in range(restarts + 1):
        process = subprocess.Popen(
            [sys.executable, "-m", "broker", "nsqd", f"-data-path={tmp_path}", *FLAGS],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            assert process.stderr is not None
            address = next(
                m[1] for line in process.stderr if (m := re.search(r"listening on (\S+)", line))
            )
            if turn == restarts:
                check(address)
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0


def test_a_rewound_channel_still_gets_its_own_alone(tmp_path: Path) -> None:
    source, data = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    data.mkdir()
    describe(source, t={"channels": ["a", "b"]})
    put(source, "t:a", record(b"a1") + record(b"a2"))
    put(source, "t:b", record(b"b1") + record(b"b2") + record(b"b3"))
    uvloop.run(Import(source, data, Config()).run())
    with Rig(data / "logs") as rig:
        cursor = rig.log().cursors["a"]
        assert cursor.rewind(1) == 1
        consumer = LocalConsumer(cursor, 100)
        rig.settle()
        assert [body for *_, body in consumer.records] == [b"a1", b"a2"]


def check(address: str) -> None:
    wanted = {
        "a": [(11, 1, b"a1"), (12, 4, b"a2"), (13, 1, b"a3"), (16, 1, b"all")],
        "b": [(14, 65535, b"b1"), (15, 1, b"x" * 3_000_000), (16, 1, b"all")],
        "c": [(16, 1, b"all")],
    }
    consumers = {channel: Consumer(address, "t", channel) for channel in wanted}
    for channel, messages in wanted.items():
        assert sorted(consumers[channel].take(len(messages))) == messages
    consumers["a"].socket.sendall(b"PUB t\n\0\0\0\3now")
    for consumer in consumers.values():
        # what is published now comes next: nothing else was waiting
        assert consumer.take(1)[0][2] == b"now"
        consumer.close()
