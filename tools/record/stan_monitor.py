"""Writes into tests/golden/stan/monitor.jsonl what nats-streaming-server answers.

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

from support.golden.stan import CONFIG, FILE, Traffic, load, play
from support.stan.client import StanServer


def main() -> None:
    """One server, all requests in turn."""
    entries = load()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stan.conf"
        file.write_text(CONFIG)
        server = StanServer(Path(folder) / "server", "-sc", str(file))
        try:
            traffic = Traffic(server)
            for entry in entries:
                entry["says"] = play(entry["ask"], server.monitor)
            traffic.close()
        finally:
            server.stop()
    FILE.write_text("".join(f"{json.dumps(it, ensure_ascii=False)}\n" for it in entries))


if __name__ == "__main__":
    main()
