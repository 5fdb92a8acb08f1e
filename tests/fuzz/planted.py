"""Targets with mistakes in them: what the fuzzer must find."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from fuzz.engine import Target

SEEDS = [b"some bytes", b"others"]


def crash(data: bytes) -> None:
    """A crash, some way into the search."""
    if b"!" in data:
        os.abort()


def wrong(data: bytes) -> None:
    """A wrong answer."""
    assert b"!" not in data, "found it"


class Dropped:
    """Its end goes wrong, where nobody can catch it."""

    def __del__(self) -> None:
        raise ValueError("nobody hears this")


def ignored(data: bytes) -> None:
    """An exception that nobody can catch."""
    if b"!" in data:
        Dropped()


_kept: list[Any] = []


def leak(data: bytes) -> None:
    """Memory that is not given back."""
    if b"!" in data:
        _kept.append(ctypes.create_string_buffer(1000))


def crash_target() -> Target:
    return Target("planted", crash, SEEDS, [b"!"])


def wrong_target() -> Target:
    return Target("planted", wrong, SEEDS, [b"!"])


def ignored_target() -> Target:
    return Target("planted", ignored, SEEDS, [b"!"])


def leak_target() -> Target:
    return Target("planted", leak, [*SEEDS, b"!"], leaks=True)
