"""File calls of a broker that fail or take long, switched while it runs. See faults.c."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("faults.c")
BUILT = ROOT / "build" / "campaign"
KINDS = (
    "open", "create", "opendir", "read", "write", "sync", "truncate", "rename", "unlink", "mkdir",
    "rmdir", "stat", "mmap", "flock", "link",
)  # fmt: skip
FOR_EVER = 1 << 40
PAGE_BYTES = 4096
TEXT_AT, TEXT_BYTES = 512, 512
_ERROR, _MASK, _LEFT, _TIMES, _FAILED, _SYNC_US, _PARTIAL, _COUNTS = 0, 1, 2, 3, 4, 5, 6, 8


def library() -> Path:
    """The compiled faults.c."""
    source = SOURCE.read_bytes()
    target = BUILT / f"faults-{hashlib.sha256(source).hexdigest()[:12]}.so"
    if not target.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Wno-nonnull-compare", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", str(fresh), str(SOURCE), "-ldl"], check=True)
        fresh.replace(target)
    return target


class Faults:
    """Faults of all processes that are started with `environment`, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        memory = Path("/dev/shm")
        number, name = tempfile.mkstemp(prefix="faults-", dir=memory if memory.is_dir() else None)
        os.ftruncate(number, PAGE_BYTES)
        self.path = Path(name)
        self.page = mmap.mmap(number, PAGE_BYTES)
        os.close(number)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a process with these faults."""
        return {
            "LD_PRELOAD": str(library()),
            "FAULTS_FOLDER": str(self.folder),
            "FAULTS_PAGE": str(self.path),
        }

    def _get(self, place: int) -> int:
        (value,) = struct.unpack_from("<q", self.page, place * 8)
        return int(value)

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("<q", self.page, place * 8, value)

    def fail(
        self,
        kinds: tuple[str, ...],
        error: int,
        *,
        after: int = 0,
        times: int = 1,
        partial: int = 0,
    ) -> None:
        """Let calls of these kinds fail this many times, after `after` of them have passed."""
        self.heal()
        self.page[TEXT_AT : TEXT_AT + TEXT_BYTES] = bytes(TEXT_BYTES)
        self._set(_MASK, sum(1 << KINDS.index(kind) for kind in kinds))
        self._set(_LEFT, after)
        self._set(_TIMES, times)
        self._set(_FAILED, 0)
        self._set(_PARTIAL, partial)
        self._set(_ERROR, error)

    def heal(self) -> None:
        """Remove all faults."""
        self._set(_ERROR, 0)

    def slow_syncs(self, seconds: float) -> None:
        """Delay each sync by this time from now on."""
        self._set(_SYNC_US, int(seconds * 1e6))

    @property
    def failed(self) -> int:
        """Calls that have failed since the last `fail`."""
        return self._get(_FAILED)

    @property
    def last(self) -> str:
        """The call that failed last."""
        return self.page[TEXT_AT : TEXT_AT + TEXT_BYTES].split(b"\0")[0].decode()

    def counts(self) -> dict[str, int]:
        """Calls of each kind so far."""
        return {kind: self._get(_COUNTS + i) for i, kind in enumerate(KINDS)}

    def close(self) -> None:
        self.page.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
