"""Compiles the modules of this folder, as `broker._build` compiles those of the broker.

    python tests/support/native/build.py

TWINWIRE_BUILD chooses the mode, and each mode has its folder. Importing `support.native` calls
`compiled`, which runs this file in another process if a source has changed: that one does not
inherit a preloaded sanitizer, and the tests do not load setuptools. Processes that find the same
change at the same time wait for the first one.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(__file__).resolve().parent
PACKAGE = "support.native"


class BuildError(Exception):
    """The compiler refused a module; its messages are on standard error."""


def _base() -> Path:
    return ROOT / "build" / os.environ.get("TWINWIRE_BUILD", "release") / "tests"


def _sources() -> str:
    """Changes with every file that the modules are compiled from, and with the interpreter."""
    broker = ROOT / "broker"
    paths = [
        *FOLDER.glob("*.p[yx]*"),
        *broker.rglob("*.pxd"),
        *broker.rglob("*.h"),
        broker / "_build.py",
    ]
    state = sha256(sys.version.encode())
    for path in sorted(paths):
        facts = path.stat()
        state.update(f"{path} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return state.hexdigest()


def _is_current(base: Path) -> bool:
    stamp = base / "sources"
    return stamp.is_file() and stamp.read_text() == _sources()


def compiled() -> Path:
    """The folder of the compiled modules; BuildError."""
    base = _base()
    if not _is_current(base):
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        command = [sys.executable, str(Path(__file__).resolve())]
        if subprocess.run(command, env=environment, check=False).returncode:
            raise BuildError("the modules of tests/support/native do not compile")
    return base / "lib" / Path(*PACKAGE.split("."))


def main() -> int:
    """Compile what has changed; 0 when all is up to date."""
    base = _base()
    base.mkdir(parents=True, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_current(base):
            return 0
        sources = _sources()
        (base / "sources").unlink(missing_ok=True)
        if not _build(base):
            return 1
        (base / "sources").write_text(sources)
    return 0


def _build(base: Path) -> bool:
    from broker import _build

    os.chdir(ROOT)
    found = [
        _build.extension(f"{PACKAGE}.{path.stem}", path.relative_to(ROOT))
        for path in sorted(FOLDER.glob("*.pyx"))
    ]
    return _build.build_into(found, base / "lib", base / "o")


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # instead of this folder, before an installed copy of the broker
    sys.exit(main())
