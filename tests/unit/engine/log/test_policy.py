"""The policy of a log, and what of it is on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.engine import Rig, finish_all, limit, numbered, segment_files

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.policy import ACKED, LIMITS, LogPolicy

SMALL: dict[str, Any] = {"segment_bytes": 600}


def page_of(root: Path) -> dict[str, Any]:
    page: dict[str, Any] = orjson.loads((root / "t" / "meta.json").read_bytes())
    return page


@pytest.mark.parametrize("sync", ["always", "none", 0.25, 2])
@pytest.mark.parametrize("retention", [ACKED, LIMITS])
def test_it_says_what_it_was_given(sync: str | float, retention: str) -> None:
    policy = LogPolicy(sync, retention)
    assert (policy.sync, policy.retention) == (sync, retention)


def test_there_are_two_retentions() -> None:
    with pytest.raises(ValueError, match="forever"):
        LogPolicy("none", "forever")


def test_sync_changes_and_retention_stays(tmp_path: Path) -> None:
    with Rig(tmp_path, sync=2.0) as rig:
        log = rig.engine.open_log("t", retention=LIMITS)
        log.set_sync("always")
        assert (log.policy.sync, log.policy.retention) == ("always", LIMITS)


@pytest.mark.parametrize(("protocol", "retention"), [(None, LIMITS), ("x", ACKED)])
def test_retention_is_not_the_protocol(
    tmp_path: Path, protocol: str | None, retention: str
) -> None:
    """What all cursors have finished goes or stays as the policy says, whoever owns the log."""
    with Rig(tmp_path, **SMALL) as rig:
        rig.engine.open_log("t", protocol=protocol, retention=retention)
        rig.close()
    assert page_of(tmp_path)["retention"] == retention
    with Rig(tmp_path, **SMALL) as rig:
        log = rig.engine.log("t")
        assert log is not None
        assert (log.protocol, log.policy.retention) == (protocol, retention)
        consumer = LocalConsumer(log.open_cursor("c"), 1000)
        rig.publish(log, numbered(40))
        assert len(finish_all(consumer)) == 40
        rig.advance(2)
        assert (log.first_seq == 1) == (retention == LIMITS)
        assert (len(segment_files(tmp_path)) > 1) == (retention == LIMITS)


@pytest.mark.parametrize(("protocol", "retention"), [(None, ACKED), ("x", LIMITS)])
def test_metadata_without_the_key_mean_what_they_did(
    tmp_path: Path, protocol: str | None, retention: str
) -> None:
    with Rig(tmp_path) as rig:
        rig.engine.open_log("t", protocol=protocol, retention=retention)
        rig.close()
    assert "retention" not in page_of(tmp_path)
    with Rig(tmp_path) as rig:
        log = rig.engine.log("t")
        assert log is not None
        assert (log.protocol, log.policy.retention) == (protocol, retention)


def test_a_log_gets_another_retention(tmp_path: Path) -> None:
    with Rig(tmp_path, **SMALL) as rig:
        log = rig.log()
        rig.publish(log, numbered(40))
        assert rig.engine.open_log("t", retention=LIMITS) is log
        limit(log, msgs_max=5)
        assert log.visible - log.first_seq == 5
        rig.close()
    with Rig(tmp_path, **SMALL) as rig:
        assert rig.engine.open_log("t").policy.retention == LIMITS


def test_lost_metadata_of_a_log_of_another_retention(tmp_path: Path) -> None:
    """No header says it, so nothing is dropped before an operator claims the log."""
    with Rig(tmp_path, **SMALL) as rig:
        log = rig.engine.open_log("t", retention=LIMITS)
        consumer = LocalConsumer(log.open_cursor("c"), 1000)
        rig.publish(log, numbered(40))
        finish_all(consumer)
        rig.close()
    (tmp_path / "t" / "meta.json").unlink()
    with Rig(tmp_path, **SMALL) as rig:
        log = rig.engine.open_log("t")
        assert log.unclaimed
        files = len(segment_files(tmp_path))
        rig.advance(2)
        assert len(segment_files(tmp_path)) == files > 1
