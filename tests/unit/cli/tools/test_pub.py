"""`twinwire pub` ends while there is more to read: the thread that reads says nothing of it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.cli.tools import pub


def test_the_reading_thread_ends_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    unhandled: list[Any] = []
    reads: list[int] = []
    read = os.read

    def counting(file: int, most: int) -> bytes:
        reads.append(most)
        return read(file, most)

    monkeypatch.setattr(os, "read", counting)
    monkeypatch.setattr(pub, "CHUNKS_AHEAD", 1)
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    before = set(threading.enumerate())
    with Path(os.devnull.replace("null", "zero")).open("rb") as endless:
        monkeypatch.setattr(sys, "stdin", endless)

        async def take_one() -> None:
            await anext(pub._stdin())
            # The third does not fit. Nothing tells of a task that has begun to wait.
            while len(reads) < 3 or len(asyncio.all_tasks()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)

        asyncio.run(take_one())
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
            assert not thread.is_alive()
    assert unhandled == []
