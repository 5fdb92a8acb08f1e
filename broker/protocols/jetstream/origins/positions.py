"""The positions up to which the sources of a stream were copied, in a file: messages that were
removed since then, or never stored, are not copied again.

The file is written some time after the messages, which have the same positions in their headers:
after a crash, the messages after the file's position are read. This is a separate module because
the copier of a source is compiled.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from broker.base.durable import UnsyncedError, save, unsealed

if TYPE_CHECKING:
    from pathlib import Path

SOURCES_FILE: Final = "sources.json"  # in the folder of a stream


class Positions(msgspec.Struct):
    """The content of the file."""

    # of the stream, RFC 3339: a stream of the same name may have been here before
    created: str = ""
    running: bool = False  # it had sources: later messages may contain more
    upto: int = 0  # includes what the stream has up to this sequence
    sources: dict[str, int] = {}  # key of a source -> sequence in its origin


def load(folder: Path, created: str, last_seq: int) -> Positions:
    """The positions of a stream. Those of another stream, or beyond its end, are ignored."""
    with contextlib.suppress(OSError, ValueError):
        data = unsealed((folder / SOURCES_FILE).read_bytes())
        found = msgspec.json.decode(data, type=Positions)
        if found.created == created and found.upto <= last_seq:
            return found
    return Positions(created=created)


def store(folder: Path, positions: Positions) -> None:
    """Write the file, unless the stream was deleted. OSError."""
    if not folder.is_dir():
        return
    with contextlib.suppress(UnsyncedError):
        save(folder / SOURCES_FILE, msgspec.json.encode(positions))
