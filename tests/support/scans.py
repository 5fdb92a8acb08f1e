"""Scanning as a connection does: what is left over comes again with the next piece."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

Op = tuple[Any, ...]


def scan_cut(
    scan: Callable[..., tuple[list[Op], int, int, int, int]],
    data: bytes,
    cuts: list[int],
    fence: Callable[[bytes], AbstractContextManager[None]] = nullcontext,
    **rules: Any,
) -> list[Op]:
    """Every operation up to the first error. `scan`: of support.native.nats; `fence`: entered with
    the bytes of each scan."""
    ops: list[Op] = []
    rest, skipping, pending = b"", 0, 0
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        rest += data[start:end]
        used = 1
        while rest and used:
            with fence(rest):
                found, used, need, skipping, pending = scan(
                    rest, skipping=skipping, pending=pending, **rules
                )
            ops += found
            if found and found[-1][0] == "ERROR":
                return ops
            assert used <= len(rest)
            assert need == 0 or need > len(rest) - used
            rest = rest[used:]
    return ops
