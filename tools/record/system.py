"""Writes tests/golden/nats_system.json: what nats-server's system account says in one session.

python tools/record/system.py [NATS-SERVER]
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.system_account import CONFIG, SystemSession

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "nats_system.json"


def main() -> None:
    """Start the original, play the session, write what came."""
    program = sys.argv[1] if len(sys.argv) > 1 else "nats-server"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "n.conf"
        config.write_text(CONFIG)
        with subprocess.Popen([program, "-c", config], stderr=subprocess.PIPE, text=True) as child:
            try:
                assert child.stderr is not None
                for line in child.stderr:
                    if match := re.search(r"client connections on ([\d.]+):(\d+)", line):
                        break
                else:
                    raise SystemExit("it did not start")
                found = asyncio.run(SystemSession((match[1], int(match[2]))).run())
            finally:
                child.terminate()
    lines = (f"{json.dumps(step)}: {json.dumps(answer)}" for step, answer in found.items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
