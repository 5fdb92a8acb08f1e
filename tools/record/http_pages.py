"""Writes the answers of the HTTP goldens from what nsqd really says: http.py [--write]."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support import Originals
from support.golden.http import load, play


def main() -> int:
    path = Path(__file__).parents[2] / "tests" / "golden" / "http" / "nsqd.jsonl"
    entries = load(path)
    with tempfile.TemporaryDirectory() as folder:
        server = Originals(Path(folder)).start()
        try:
            recorded = [
                {**entry, "says": play(entry, server.nsq_http, "recorded")} for entry in entries
            ]
        finally:
            server.close()
    if recorded == entries:
        return 0
    print(f"{path.name} differs from what the original says")
    if "--write" in sys.argv:
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in recorded))
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
