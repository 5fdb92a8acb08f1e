"""A log whose file calls fail in any order, while its threads are now fast, now slow.

What was answered with 'stored' is read, in order; what was answered with 'failed' is not read, and
does not displace anything under a limit. The same holds after a kill. The threads decide what meets
what: a seed says what is done, not what happens.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    CREATE,
    FILL,
    RENAME,
    SECOND,
    SYNC,
    SYNC_PATH,
    TRUNCATE,
    UNLINK,
    WRITE,
    Rig,
    limit,
    numbered,
    readable_bodies,
    scratch,
)

from broker.engine.log.publish import append, outcome
from broker.runtime import vfs

SEEDS = 240
GROUPS = 4  # tests
# Not OPEN: a file that does not open counts as damaged, and is passed over.
CALLS = (WRITE, WRITE, SYNC, SYNC, SYNC_PATH, CREATE, RENAME, UNLINK, TRUNCATE, FILL)
DELAYS_NS = (0, 0, 200_000, 2_000_000, 6_000_000)
RECOVERY_SECONDS = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    found = scratch()
    yield found
    for call in (WRITE, SYNC):
        vfs.slow(call, 0)
    shutil.rmtree(found)


def open_log(rig: Rig, msgs_max: int) -> Any:
    log = rig.engine.open_log("t", protocol="x", retention="limits")
    if msgs_max:
        limit(log, msgs_max=msgs_max)
    return log


def disturb(rng: random.Random) -> None:
    """One kind of file call fails a few times, soon."""
    call = rng.choice(CALLS)
    partial = rng.choice((0, 0, 10, 700)) if call == WRITE else 0
    error = rng.choice((errno.EIO, errno.ENOSPC))
    vfs.fail(call, error, rng.choice((0, 0, 1, 2, 5)), rng.choice((1, 1, 2, 4)), partial)


def step(rng: random.Random, rig: Rig, log: Any, appended: list[tuple[int, bytes]]) -> None:
    """Do one thing; `appended`: tickets and bodies, more are added."""
    what = rng.random()
    if what < 0.45:
        size = rng.choice((1, 50, 500))
        for body in numbered(rng.choice((1, 1, 3, 40, 150)), size=size):
            unique = b"%d:" % len(appended) + body
            appended.append((append(log, unique), unique))
        if rng.random() < 0.7:
            rig.loop.run()
    elif what < 0.6:
        for call in (WRITE, SYNC):
            vfs.slow(call, rng.choice(DELAYS_NS))
    elif what < 0.75:
        disturb(rng)
    elif what < 0.9:
        for _ in range(rng.choice((1, 3, 10))):
            rig.loop.serve(rng.choice((0, 1, 3)))
            if rng.random() < 0.8:
                rig.loop.run()
    elif what < 0.96:
        rig.loop.advance(int(rng.choice((0.1, 1, 2.5)) * SECOND))
    else:
        rig.settle()


def run(seed: int, folder: Path, sync: str | float) -> None:
    rng = random.Random(seed)
    limits: dict[str, Any] = {
        "sync": sync,
        "segment_bytes": rng.choice((4096, 20_000)),
        "inline_bytes": rng.choice((0, 0, 4096)),
    }
    msgs_max = rng.choice((0, 0, 0, 30, 200))
    appended: list[tuple[int, bytes]] = []
    with Rig(folder / "a", **limits) as rig:
        log = open_log(rig, msgs_max)
        for _ in range(rng.randrange(5, 40)):
            step(rng, rig, log, appended)
        vfs.heal()
        for _ in range(RECOVERY_SECONDS):
            rig.advance(1)
        results = [outcome(log, ticket) if ticket else -1 for ticket, _ in appended]
        assert 0 not in results, "an append is not answered"
        assert rig.publish(log, [b"end"]) == [1], "it does not recover"
        rig.advance(1)
        stored = [body for (_, body), result in zip(appended, results, strict=True) if result == 1]
        stored.append(b"end")
        shutil.copytree(folder / "a", folder / "b")  # as after kill -9
        assert readable_bodies(rig, log) == stored[-msgs_max:]
    with Rig(folder / "b", **limits) as rig:
        log = open_log(rig, msgs_max)
        rig.advance(1)
        # the count of records in older files is estimated: there may be more
        assert readable_bodies(rig, log)[-len(stored) :][-msgs_max:] == stored[-msgs_max:]


@pytest.mark.parametrize("sync", ["always", 2.0])
@pytest.mark.parametrize("group", range(GROUPS))
def test_errors_in_any_order(folder: Path, group: int, sync: str | float) -> None:
    first = random.randrange(1 << 32) if os.environ.get("HYPOTHESIS") == "fresh" else 0
    for seed in range(first + group, first + SEEDS, GROUPS):
        try:
            run(seed, folder / str(seed), sync)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}") from problem
        shutil.rmtree(folder / str(seed))
