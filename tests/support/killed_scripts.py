"""Runs a script of tests/faults and kills it while it works."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path


def run_and_kill(script: Path, *arguments: str, start_s: float, seconds: float) -> bytes:
    """Run a script, and kill it `seconds` after its first output. Returns its output.
    AssertionError: it has no output within `start_s`, or ends by itself."""
    said = bytearray()
    with subprocess.Popen(
        [sys.executable, str(script), *arguments], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        end = time.monotonic() + start_s
        try:
            while (left := end - time.monotonic()) > 0:
                if not select.select([pipe], [], [], left)[0]:
                    break
                data = os.read(pipe, 1 << 20)
                assert data, "it died by itself"
                if not said:
                    end = time.monotonic() + seconds
                said += data
        finally:
            process.kill()
        while data := os.read(pipe, 1 << 20):
            said += data
    assert said
    return bytes(said)
