"""File calls that fail in any order, and threads that are now fast, now slow.

A seed says what is done, not what happens: the threads decide what meets what.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from broker.runtime import vfs
from support.engine import (
    CREATE,
    FILL,
    OPEN,
    RENAME,
    SECOND,
    SYNC,
    SYNC_PATH,
    TRUNCATE,
    UNLINK,
    WRITE,
    Rig,
    scratch,
)

GROUPS = 4  # of seeds; each is a test
SEEDS = 240
CALLS = (WRITE, WRITE, SYNC, SYNC, SYNC_PATH, OPEN, OPEN, CREATE, RENAME, UNLINK, TRUNCATE, FILL)
DELAYS_NS = (0, 0, 200_000, 2_000_000, 6_000_000)
RECOVERY_SECONDS = 8


def fail_some(rng: random.Random) -> None:
    """One kind of file call fails a few times, soon."""
    call = rng.choice(CALLS)
    partial = rng.choice((0, 0, 10, 700)) if call == WRITE else 0
    error = rng.choice((errno.EIO, errno.ENOSPC))
    vfs.fail(call, error, rng.choice((0, 0, 1, 2, 5)), rng.choice((1, 1, 2, 4)), partial)


def disturb(rng: random.Random, rig: Rig) -> None:
    """Calls fail, the disk becomes slow or fast, the loop runs, or time passes."""
    what = rng.random()
    if what < 0.3:
        fail_some(rng)
    elif what < 0.55:
        for call in (WRITE, SYNC):
            vfs.slow(call, rng.choice(DELAYS_NS))
    elif what < 0.82:
        for _ in range(rng.choice((1, 3, 10))):
            rig.loop.serve(rng.choice((0, 1, 3)))
            if rng.random() < 0.8:
                rig.loop.run()
    elif what < 0.93:
        rig.loop.advance(int(rng.choice((0.1, 1, 2.5)) * SECOND))
    else:
        rig.settle()


def recover(rig: Rig) -> None:
    """No call fails any more, and the engine has had the time to notice."""
    vfs.heal()
    for _ in range(RECOVERY_SECONDS):
        rig.advance(1)


def run_seeds(group: int, run: Callable[[random.Random, Path], None]) -> None:
    """Run the seeds of a group, each in a new folder; HYPOTHESIS=fresh takes others in each run."""
    first = random.randrange(1 << 32) if os.environ.get("HYPOTHESIS") == "fresh" else 0
    for seed in range(first + group, first + SEEDS, GROUPS):
        folder = scratch()
        try:
            run(random.Random(seed), folder)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}") from problem
        finally:
            for call in (WRITE, SYNC):
                vfs.slow(call, 0)
            shutil.rmtree(folder)
