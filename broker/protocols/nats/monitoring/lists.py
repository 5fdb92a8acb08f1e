"""A page with a list that may be long: its entries are made while it is written.

Ten thousand connections are some hundred milliseconds of work. It is done a little at a time, with
turns of the loop between, and what is ready is written before more is made. Below: how the subjects
that such pages filter by are compared.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from broker.base.values import dataclass
from broker.protocols.nats.monitoring import limits
from broker.protocols.nats.monitoring.options import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_EMPTY: Final = b"[]\n}"  # how a page ends whose list has no entries
_WILD = (b"*", b">")


@dataclass(slots=True)
class LongPage:
    """The list comes last; without a `key` there is none."""

    head: dict[str, Any]  # everything but the list, in order
    key: str  # of the list
    entries: Iterator[dict[str, Any]]

    def whole(self) -> dict[str, Any]:
        """The page at once."""
        return self.head | ({self.key: list(self.entries)} if self.key else {})

    async def parts(self) -> AsyncIterator[bytes]:
        """The JSON of the whole page, piece by piece."""
        begin = encode(self.head | ({self.key: []} if self.key else {}))
        made: list[dict[str, Any]] = []
        comma = b"["
        due_ns = time.monotonic_ns() + limits.MONITOR_TURN
        for entry in self.entries:
            made.append(entry)
            if time.monotonic_ns() >= due_ns:
                yield begin.removesuffix(_EMPTY) + comma + _inner(made)
                begin, comma, made = b"", b",", []
                await asyncio.sleep(0)
                due_ns = time.monotonic_ns() + limits.MONITOR_TURN
        if made:
            yield begin.removesuffix(_EMPTY) + comma + _inner(made) + b"\n  ]\n}"
        else:
            yield begin or b"\n  ]\n}"


def _inner(entries: list[dict[str, Any]]) -> bytes:
    """Entries of a list, one level deeper than they would stand alone."""
    text = encode(entries)
    return text.removeprefix(b"[").removesuffix(b"\n]").replace(b"\n", b"\n  ")


def is_literal(subject: str) -> bool:
    """Whether a message can be published there: tokens, none empty, none a wildcard."""
    return all(token and token not in ("*", ">") for token in subject.split("."))


def collide(one: bytes, other: bytes) -> bool:
    """Whether there is a message that both of them find."""
    if one == other:
        return True
    left, right = one.split(b"."), other.split(b".")
    for mine, yours in zip(left, right, strict=False):
        if b">" in (mine, yours):
            return True
        if mine != yours and mine not in _WILD and yours not in _WILD:
            return False
    return len(left) == len(right)
