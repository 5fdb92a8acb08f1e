"""Writes into tests/golden/nats/monitor.jsonl what nats-server answers: `tools/record/monitor.py`.

What is asked is kept; the answers are recorded. Read the diff before you believe it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TWINWIRE_TEST_TARGET"] = "original"
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.golden.monitor import CONFIG, FILE, Traffic, load, play
from support.nats_file import FileServer


def main() -> None:
    """One server, all requests in turn."""
    entries = load()
    with tempfile.TemporaryDirectory() as folder:
        server = FileServer(Path(folder), CONFIG)
        try:
            traffic = Traffic(server.address, server.monitor)
            for entry in entries:
                entry["says"] = play(entry["ask"], server.monitor)
            traffic.close()
        finally:
            server.close()
    FILE.write_text("".join(f"{json.dumps(it, ensure_ascii=False)}\n" for it in entries))


if __name__ == "__main__":
    main()
