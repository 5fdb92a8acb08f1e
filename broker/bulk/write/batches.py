"""One writer's blocks for one epoch: the files they are in.

    <data>/staged/<writer>/<epoch>/<topic>~<part>~<attempt>.blk

A file is whole blocks, one after the other. Half a block at its end, left by an end of the process,
is cut off when the file is looked at for the first time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.bulk import limits
from broker.engine.bulk.blocks import BLOCK_HEAD_BYTES, GOOD, block_bytes, check_block
from broker.engine.log.files import escape, unescape

HEADERS_BEGIN: Final = b"NATS/1.0\r\n"
SUFFIX: Final = ".blk"
Key = tuple[str, int, str]  # topic, part, attempt


@dataclass(slots=True)
class Attempt:
    """What one attempt of a task has uploaded for one topic."""

    size: int = 0
    checked: bool = True  # False: found at start, nobody has looked at it
    sealed: bool = False  # named by a commit
    doubtful: bool = False  # a sync of it has failed
    gone: bool = False  # dropped while somebody waited for the lock
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Batch:
    """What one writer has staged for one epoch."""

    def __init__(self, root: Path, writer: str, epoch: int) -> None:
        self.writer = writer
        self.epoch = epoch
        self.folder = root / escape(writer) / str(epoch)
        self.made = False
        self.attempts: dict[Key, Attempt] = {}
        self.touched_ns = time.time_ns()
        self.busy = 0  # requests and commits that need it
        self.dropping: asyncio.Event | None = None

    @property
    def bytes(self) -> int:
        """In all its files."""
        return sum(attempt.size for attempt in self.attempts.values())

    def path(self, key: Key) -> Path:
        """Of one attempt's file."""
        topic, part, attempt = key
        return self.folder / f"{escape(topic)}~{part}~{attempt}{SUFFIX}"


def key_of(name: str) -> Key | None:
    """What a file name stands for."""
    parts = name.removesuffix(SUFFIX).rsplit("~", 2)
    if not name.endswith(SUFFIX) or len(parts) != 3 or not parts[1].isdigit():
        return None
    return unescape(parts[0]), int(parts[1]), parts[2]


def remove_folder(folder: Path, trash: Path) -> None:
    """Under another name first: the folder may be made again at once."""
    try:
        folder.rename(trash)
    except FileNotFoundError:
        return
    shutil.rmtree(trash, ignore_errors=True)


def remove_files(paths: list[Path]) -> None:
    """Remove these."""
    for path in paths:
        path.unlink(missing_ok=True)


def is_there(path: Path, offset: int, block: bytearray) -> bool:
    """Does the file hold these bytes at the offset?"""
    with path.open("rb") as file:
        file.seek(offset)
        step = limits.STAGED_READ_BYTES
        view = memoryview(block)
        return all(file.read(step) == view[at : at + step] for at in range(0, len(view), step))


def whole_blocks(path: Path, topic: bytes) -> int:
    """How many bytes at the beginning of a file are whole blocks; the others are cut off."""
    good = 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        while good < size:
            file.seek(good)
            length = block_bytes(file.read(BLOCK_HEAD_BYTES).ljust(BLOCK_HEAD_BYTES, b"\0"))
            if not 0 < length <= limits.STAGED_BLOCK_BYTES_MAX or good + length > size:
                break
            file.seek(good)
            if check_block(file.read(length), topic, HEADERS_BEGIN)[0] != GOOD:
                break
            good += length
        if good < size:
            file.truncate(good)
    return good
