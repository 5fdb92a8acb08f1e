"""When a publish is answered: group commit, periods, and no sync at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.engine import (
    Rig,
    numbered,
)

from broker.core.publish import append, outcome


@pytest.mark.parametrize("inline", [0, 1 << 17])
def test_publishers_of_a_turn_share_a_sync(tmp_path: Path, inline: int) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=inline) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])  # the file and the folders are new to the disk
        before = rig.engine.shared.syncs
        tickets = [append(log, body) for body in numbered(50)]
        assert {outcome(log, ticket) for ticket in tickets} == {0}
        rig.settle()
        assert {outcome(log, ticket) for ticket in tickets} == {1}
        assert rig.engine.shared.syncs == before + 1


def test_nothing_is_answered_before_it_is_synced(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        shared = rig.engine.shared
        before = shared.syncs
        ticket = append(log, b"x")
        seen = []
        rig.loop.run()
        while not outcome(log, ticket):
            seen.append(shared.syncs)
            rig.loop.serve(5_000)
            rig.loop.run()
        assert set(seen) == {before}
        assert shared.syncs == before + 1


def test_what_was_written_during_a_sync_waits_for_the_next(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always", inline_bytes=1 << 17) as rig:
        log = rig.log()
        rig.publish(log, [b"first"])
        before = rig.engine.shared.syncs
        early = append(log, b"early")
        rig.loop.run()
        late = append(log, b"late")
        rig.loop.run()
        assert log.visible == log.next_seq == 4
        while outcome(log, early) == 0:
            assert outcome(log, late) == 0
            rig.loop.serve(5_000)
        assert rig.engine.shared.syncs == before + 1
        assert outcome(log, late) == 0
        rig.settle()
        assert outcome(log, late) == 1
        assert rig.engine.shared.syncs == before + 2


def test_a_period_syncs_once_per_period(memory_path: Path) -> None:
    with Rig(memory_path, sync=2.5) as rig:
        log = rig.log()
        syncs = []
        for _ in range(10):
            assert rig.publish(log, [b"x"]) == [1]
            rig.advance(0.5)
            syncs.append(rig.engine.shared.syncs)
        assert syncs == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
        rig.advance(60)
        assert rig.engine.shared.syncs == 2


def test_no_policy_no_sync(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="none") as rig:
        rig.publish(rig.log(), [b"x"])
        rig.advance(10)
        rig.close()
        assert rig.engine.shared.syncs == 0
