"""Data folders of nsqd in the documented format: see broker/importers/diskqueue.py."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def record(body: bytes, attempts: int = 0, timestamp_ns: int = 5) -> bytes:
    payload = struct.pack(">qH16s", timestamp_ns, attempts, b"0123456789abcdef") + body
    return struct.pack(">i", len(payload)) + payload


def put(folder: Path, name: str, *files: bytes, start: int = 0, meta: bool = True) -> None:
    """A queue of one topic or channel, read up to byte `start` of its first file."""
    for number, content in enumerate(files):
        (folder / f"{name}.diskqueue.{number:06d}.dat").write_bytes(content)
    if meta:
        last = f"{len(files) - 1},{len(files[-1])}"
        (folder / f"{name}.diskqueue.meta.dat").write_text(f"9\n0,{start}\n{last}\n")


def describe(folder: Path, **topics: dict[str, Any]) -> None:
    entries = [
        {
            "name": name,
            "paused": topic.get("paused", False),
            "channels": [
                {"name": c, "paused": c in topic.get("held", ())} for c in topic.get("channels", ())
            ],
        }
        for name, topic in topics.items()
    ]
    (folder / "nsqd.dat").write_text(json.dumps({"topics": entries, "version": "1.3.0"}))
