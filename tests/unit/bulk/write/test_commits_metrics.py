"""What is staged and what became of commits, as /metrics shows it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from raw.test_bulk_readers import metric
from support.bulk.rig import BulkRig
from support.bulk.writer import BulkWriter
from support.clients.bulk import BulkClient
from support.engine import SYNC, scratch

from broker.bulk import limits
from broker.bulk.errors import RefusedError
from broker.bulk.stats import BulkStats
from broker.bulk.write.staging import Bounds
from broker.runtime import vfs

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours
ROWS = [b"%d" % number for number in range(50)]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = scratch()
    yield path
    vfs.heal()
    shutil.rmtree(path, ignore_errors=True)


def shown(server: Server) -> dict[str, float | None]:
    names = ("staged_bytes", "staged_attempts", "commits_total", "committed_records_total",
             "commits_failed_total", "commits_under_way")  # fmt: skip
    return {name: metric(server, f"twinwire_bulk_{name}") for name in names}


def test_what_the_page_says(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker({})
    with BulkClient(server.bulk) as client:
        writer = BulkWriter(client, uniq)
        named = [writer.stage(1, uniq, part, "a", ROWS) for part in range(2)]
        staged = sum(size for _, _, size in named)
        nothing = dict.fromkeys(shown(server), 0)
        assert shown(server) == {**nothing, "staged_bytes": staged, "staged_attempts": 2}
        assert writer.commit(1, {uniq: [[0, "b", 8]]}).status == 409  # was never staged
        assert shown(server)["commits_failed_total"] == 1
        for _ in range(2):
            writer.committed(1, {uniq: named})  # the second time it publishes nothing
        done = {"commits_total": 1, "committed_records_total": 100, "commits_failed_total": 1}
        while shown(server)["staged_bytes"]:
            pass  # its files go in the background
        assert shown(server) == {**nothing, **done}


def counted(rig: BulkRig) -> Any:
    stats = BulkStats()
    rig.writes.count(stats)
    return stats.commits, stats.committed_records, stats.commits_failed, stats.commits_under_way


async def test_a_commit_that_is_put_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is under way until it is finished, after a start too, and each try that fails counts."""
    monkeypatch.setattr(limits, "COMMIT_RETRY", 10**12)
    rig = BulkRig(folder, Bounds(disk_reserve=0), "none")
    await rig.writes.start(rig.engine)
    named = await rig.stage(0, "t", 0, ROWS)
    vfs.fail(SYNC, errno.EIO, 11)  # after the intent
    with pytest.raises(RefusedError):
        await rig.commit(0, {"t": [named]})
    vfs.heal()
    assert counted(rig) == (0, 0, 1, 1)
    await rig.close()
    rig = BulkRig(folder, Bounds(disk_reserve=0), "none")
    await rig.writes.start(rig.engine)
    assert counted(rig) == (0, 0, 0, 1)
    await rig.commit(0, {"t": [named]})
    assert counted(rig) == (1, 50, 0, 0)
    await rig.close()
