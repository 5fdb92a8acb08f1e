"""A part of imported files that could not be read."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """Bytes that were not imported."""

    file: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: offset {self.offset}: {self.reason}"
