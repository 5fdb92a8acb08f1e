"""Writes what comes back in tests/golden/nsqlookupd/*.json from what nsqlookupd really answers.

    python tools/record/lookup.py

Only the "send" of each scenario is kept. Read the diff before you believe it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.clients.lookup import make_lookup
from support.golden.lookup import FOLDER, load, play_http, play_tcp


def main() -> None:
    """Play everything, each scenario against a server of its own."""
    for name, play in (("tcp", play_tcp), ("http", play_http)):
        scenarios = load(name)
        for title, scenario in scenarios.items():
            with tempfile.TemporaryDirectory() as folder:
                server = make_lookup(Path(folder), original=True)
                server.start()
                try:
                    scenario["back"] = play(server, scenario["send"])
                finally:
                    server.close()
                sys.stdout.write(f"{name}: {title}\n")
        text = json.dumps(scenarios, indent=1)
        (FOLDER / f"{name}.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
