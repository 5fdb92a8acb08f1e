"""Jobs of a worker that depend on one another."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import WAIT_MS
from support.native.jobs import sync_and_uncache
from support.page_cache import PAGE, cached

from broker.runtime.workers import Worker

NO_FILE = -1


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("test")
    yield made
    made.stop()
    made.reap()
    made.close()


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_sync_may_have_lost_stays_in_memory(
    disk: Path, worker: Worker, *, fails: bool
) -> None:
    """After an error the kernel may count pages as written which the disk does not have."""
    file = disk.with_name("file")
    file.write_bytes(bytes(PAGE))
    fd = os.open(file, os.O_RDWR)
    try:
        os.fsync(fd)
        assert cached(file)
        for _ in range(100):  # the kernel is asked, not ordered
            sync_and_uncache(worker, NO_FILE if fails else fd, os.dup(fd), PAGE)
            while not worker.idle:
                assert select.select([worker.event_fd], [], [], WAIT_MS / 1000)[0]
                worker.reap()
            if not cached(file):
                break
        assert cached(file) == fails
    finally:
        os.close(fd)
