"""The file with the positions up to which the sources of a stream were copied. Without it, messages
that were removed since then, or left out, would be copied again.

The file is written some time after the messages, which have the same positions in their headers:
after a crash, the messages after those included in the file are read. This is a separate module
because the copier of a source is compiled.
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

    # of the stream, RFC 3339: the file may be that of an earlier stream of the same name
    created: str = ""
    running: bool = False  # the stream had sources: later messages may have newer positions
    upto: int = 0  # messages of the stream up to this sequence are included
    sources: dict[str, int] = {}  # key of a source -> sequence in its origin


def load(folder: Path, created: str, last_seq: int) -> Positions:
    """The positions of a stream. A file of another stream, or of later messages, is ignored."""
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
