"""The original servers: those of `make originals`, otherwise those on the path."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / ".originals" / "bin"
NATS_SERVER_LEAST = (2, 10)  # earlier ones behave differently


def join_path(folder: Path = FOLDER) -> None:
    """Let programs of `make originals` be found by name, before those of the machine."""
    if folder.is_dir() and "TWINWIRE_TEST_BARE" not in os.environ:
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


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
