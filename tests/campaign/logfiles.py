"""The content of a log's files, read without the broker: each time only new records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from support.native.logs import scan_records

from broker.engine.log.files import escape

HEADER = 64


class Stored(NamedTuple):
    """A record in a file."""

    seq: int
    reply: bytes
    body: bytes


class LogFiles:
    """The segments of one log. Records are never changed in place, so that what was read before
    is not read again."""

    def __init__(self, data: Path, name: str) -> None:
        self.folder = data / "logs" / escape(name)
        self.read: dict[str, tuple[int, int]] = {}  # of each file: bytes, the seq behind them
        self.damaged_bytes = 0

    def names(self) -> list[Path]:
        return sorted(self.folder.glob("*.seg"))

    def forget(self) -> None:
        """Read everything again the next time."""
        self.read.clear()

    def fresh(self) -> Iterator[Stored]:
        """Records that were not there the last time. What the next file begins with hides the rest
        of a file: records that were refused when their sync failed."""
        names = self.names()
        for path, after in zip_longest(names, names[1:]):
            end = int(after.stem) if after else 1 << 64
            at, behind = self.read.get(path.name, (HEADER, int(path.stem)))
            with path.open("rb") as file:
                head = file.read(HEADER)
                file.seek(at)
                data = file.read()
            if len(head) < HEADER or not data:
                continue
            records, cut, damaged = scan_records(data, head[16:32], behind)
            self.damaged_bytes += damaged
            for seq, _, reply, _, body in records:
                behind = seq + 1
                if seq < end:
                    yield Stored(seq, reply, body)
            self.read[path.name] = at + len(data) - cut, behind
