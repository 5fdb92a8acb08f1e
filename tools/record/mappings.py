"""Writes into tests/golden/nats/mappings.json what nats-server makes of each mapping.

    python tools/record/mappings.py

Sources, destinations and subjects are kept; results and refusals are recorded. Each mapping has an
account of its own. Read the diff before you believe it.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = Path(__file__).parents[2] / "tests" / "golden" / "nats" / "mappings.json"


def refusal(source: str, destination: str, folder: Path) -> str:
    """What the original says when its configuration is checked; empty: nothing."""
    path = folder / "check.conf"
    path.write_text(json.dumps({"mappings": {source: destination}}))
    checked = subprocess.run(
        ["nats-server", "-t", "-c", str(path)], capture_output=True, text=True, check=False
    )
    found = re.search(r"Error adding mapping for .*? to .*? : (.*)", checked.stderr)
    invalid = re.search(r'Subject ".*" is not a valid subject', checked.stderr)
    return found[1] if found else "invalid subject" if invalid else ""


def play(address: tuple[str, int], user: str, subjects: list[str]) -> list[str | None]:
    """Where each subject went; None: nobody got the message."""
    options = json.dumps({"verbose": False, "pedantic": False, "user": user, "pass": user})
    with socket.create_connection(address) as peer:
        stream = peer.makefile("rwb")
        stream.readline()
        # The CONNECT alone: what comes with it in one read escapes the mappings (trap 29).
        stream.write(f"CONNECT {options}\r\nPING\r\n".encode())
        stream.flush()
        assert stream.readline() == b"PONG\r\n"
        results: list[str | None] = []
        stream.write(b"SUB > 1\r\n")
        for subject in subjects:
            stream.write(f"PUB {subject} 0\r\n\r\nPING\r\n".encode())
            stream.flush()
            line = stream.readline()
            results.append(None if line == b"PONG\r\n" else line.decode().split()[1])
            while line != b"PONG\r\n":
                line = stream.readline()
        return results


def main() -> None:
    """Check each mapping, then let one server do all that are good."""
    assert shutil.which("nats-server"), "nats-server is not on PATH"
    cases = json.loads(FILE.read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases:
            case["refused"] = refusal(case["source"], case["to"], folder)
        accounts = {
            f"A{i}": {
                "users": [{"user": f"u{i}", "password": f"u{i}"}],
                "mappings": {case["source"]: case["to"]},
            }
            for i, case in enumerate(cases)
            if not case["refused"]
        }
        settings = {"listen": "127.0.0.1:-1", "accounts": accounts}
        config = folder / "nats.conf"
        config.write_text(json.dumps(settings))
        server = subprocess.Popen(["nats-server", "-c", str(config)], stderr=subprocess.PIPE)
        try:
            assert server.stderr is not None
            port = ""
            while b"Server is ready" not in (line := server.stderr.readline()):
                assert line, "the server ended"
                if b"Listening for client connections on " in line:
                    port = line.decode().rpartition(":")[2]
            for i, case in enumerate(cases):
                subjects = list(case["results"])
                played = (
                    [] if case["refused"] else play(("127.0.0.1", int(port)), f"u{i}", subjects)
                )
                case["results"] = dict(zip(subjects, played or [None] * len(subjects), strict=True))
        finally:
            server.terminate()
            server.wait()
    rows = ",\n ".join(json.dumps(case) for case in cases)
    FILE.write_text(f"[{rows}]\n")
    sys.stdout.write(f"{len(cases)} mappings\n")


if __name__ == "__main__":
    main()
