"""The original servers that tests compare with, where they are on this machine."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

NATS_SERVER_LEAST = (2, 10)  # earlier ones behave differently


@functools.cache
def nats_server() -> str | None:
    """The nats-server of the path, or of Go's own folder; None when it is not there or too old."""
    home = str(Path.home() / "go" / "bin")
    for path in (shutil.which("nats-server"), shutil.which("nats-server", path=home)):
        if path is not None and _version(path) >= NATS_SERVER_LEAST:
            return path
    return None


def nats_server_on_path() -> bool:
    """Whether `nats-server` by its name is one to compare with."""
    return shutil.which("nats-server") is not None and nats_server() == shutil.which("nats-server")


def _version(path: str) -> tuple[int, ...]:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"v(\d+)\.(\d+)\.", done.stdout + done.stderr)
    return tuple(int(part) for part in found.groups()) if found else (0,)
