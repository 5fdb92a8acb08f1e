"""Imports whose file calls fail end with an error or have everything, and another run completes
them."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.engine import Rig
from support.file_errors import fail_some
from support.nsqd_folder import describe, put, record
from support.stan.stores import recorded_store

from broker.config.config import Config
from broker.engine.cursor.local import LocalConsumer
from broker.importers import nsqd, stan
from broker.protocols.stan.store import Store
from broker.runtime import vfs

SEEDS = range(60)
OS_CALLS = ("fsync", "rename", "replace", "mkdir", "open")
Found = dict[str, Any]


def make_nsqd(rng: random.Random, folder: Path) -> Path:
    """A data folder of nsqd: topics with channels of their own backlogs, some of them paused."""
    source = folder / "source"
    source.mkdir()
    topics: dict[str, Any] = {}
    for topic in "ab":
        channels = rng.sample("xyz", rng.randrange(4))
        held = [name for name in channels if rng.random() < 0.3]
        topics[topic] = {"channels": channels, "held": held, "paused": rng.random() < 0.2}
        for queue in (topic, *(f"{topic}:{name}" for name in channels)):
            bodies = [b"%d" % n + b"." * rng.choice((0, 3000)) for n in range(rng.choice((1, 40)))]
            put(source, queue, b"".join(record(body, rng.choice((0, 3))) for body in bodies))
    describe(source, **topics)
    return source


def found_in(root: Path) -> Found:
    """What each log and cursor of an imported data folder has."""
    found: Found = {}
    with Rig(root / "logs") as rig:
        assert not rig.engine.problems
        assert not rig.engine.quarantined
        for log in rig.engine.logs.values():
            cursors: Found = {}
            paused = log.paused
            for name, cursor in log.cursors.items():
                state = (cursor.paused, cursor.next_seq, cursor.depth)
                cursor.unpause()
                log.unpause()
                consumer = LocalConsumer(cursor, 1 << 20)
                for _ in range(20):
                    rig.settle()
                kept = re.sub(r"(stan:p:)\w{22}", r"\1", name)  # those names are made up
                cursors[kept] = (*state, sorted(consumer.records))
            found[log.name] = (log.first_seq, log.visible, log.protocol, paused, cursors)
    return found


def import_nsqd(source: Path, data: Path) -> None:
    uvloop.run(nsqd.Import(source, data, Config()).run())


def import_stan(source: Path, data: Path) -> None:
    uvloop.run(stan.Import(source, data, Config(), ()).run())


def break_os(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """One of these calls of Python code fails once, sooner or later."""
    name = rng.choice(OS_CALLS)
    call, error = getattr(os, name), rng.choice((errno.EIO, errno.ENOSPC))
    left = rng.choice((0, 1, 2, 3, 5, 8, 13, 30))

    def broken(*args: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(error, os.strerror(error), str(args[0]))
        return call(*args, **more)

    monkeypatch.setattr(os, name, broken)


def runs(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch, run: Callable[[], None]
) -> tuple[int, int]:
    """Up to three runs with failing calls; how many ended well, and how many with an error."""
    ended = [0, 0]
    for _ in range(rng.randrange(1, 4)):
        with monkeypatch.context() as patch:
            if rng.random() < 0.7:
                fail_some(rng)
            if rng.random() < 0.5:
                break_os(patch, rng)
            try:
                run()
                ended[0] += 1
            except OSError:
                ended[1] += 1
            finally:
                vfs.heal()
        if ended[0]:
            break
    return ended[0], ended[1]


def test_nsqd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        source, data, clean = make_nsqd(rng, folder), folder / "data", folder / "clean"
        data.mkdir()
        clean.mkdir()
        import_nsqd(source, clean)
        ended, failed = runs(rng, monkeypatch, lambda: import_nsqd(source, data))  # noqa: B023
        errors += failed
        if not ended:
            import_nsqd(source, data)
        assert without_times(found_in(data)) == without_times(found_in(clean)), f"seed {seed}"
    assert errors > len(SEEDS) // 4  # otherwise little was tested


def test_stan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, clean = recorded_store("orders", tmp_path), tmp_path / "clean"
    clean.mkdir()
    import_stan(source, clean)
    subs, logs = subscriptions(clean), without_times(found_in(clean))
    errors = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        data = tmp_path / str(seed)
        data.mkdir()
        ended, failed = runs(rng, monkeypatch, lambda: import_stan(source, data))  # noqa: B023
        errors += failed
        if not ended:
            import_stan(source, data)
        assert subscriptions(data) == subs, f"seed {seed}"
        assert without_times(found_in(data)) == logs, f"seed {seed}"
    assert errors > len(SEEDS) // 4


def without_times(found: Found) -> Found:
    """Records as far as a second import has the same."""
    for *_, cursors in found.values():
        for name, (*state, records) in cursors.items():
            cursors[name] = (*state, [(seq, attempts) for seq, attempts, *_ in records])
    return found


def subscriptions(data: Path) -> list[tuple[str, str, bool]]:
    store = Store(data / "stan", "test-cluster")
    assert not store.problems
    return sorted(
        (re.sub(r"(stan:p:)\w{22}", r"\1", each.cursor), each.client_id, each.offline)
        for each in store.subs.values()
    )
