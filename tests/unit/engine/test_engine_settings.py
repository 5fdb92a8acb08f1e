"""Settings of single logs, and what is kept for cursors that go back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.engine import SECOND, Rig, finish_all, numbered

from broker.engine.cursor.local import LocalConsumer


def filled(rig: Rig, count: int = 100) -> tuple[Any, Any]:
    log = rig.log()
    cursor = log.open_cursor("c")
    consumer = LocalConsumer(cursor, 1000)
    rig.publish(log, numbered(count))
    return log, consumer


def test_finished_records_stay_for_their_time(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1024) as rig:
        log, consumer = filled(rig)
        rig.engine.set_settings(log, {"keep": 60 * SECOND})
        finish_all(consumer)
        rig.advance(50)
        assert log.first_seq == 1
        assert log.cursors["c"].rewind(1) == 1
        rig.settle()
        assert finish_all(consumer) == numbered(100)
        rig.advance(20)
        assert log.first_seq > 80


def test_finished_records_stay_up_to_a_size(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1024) as rig:
        log, consumer = filled(rig)
        rig.engine.set_settings(log, {"keep_bytes": 3000})
        finish_all(consumer)
        rig.advance(3000)
        assert 3000 <= log.disk_bytes < 3000 + 1024
        rig.engine.set_settings(log, {"keep_bytes": 3000, "keep": 5 * SECOND})
        assert log.first_seq > 80


def test_nothing_is_kept_that_nobody_finished_for_less(tmp_path: Path) -> None:
    """The limits of keeping say nothing about records that somebody still has to read."""
    with Rig(tmp_path, segment_bytes=1024) as rig:
        log, consumer = filled(rig)
        rig.engine.set_settings(log, {"keep": SECOND, "keep_bytes": 1})
        rig.advance(50)
        assert log.first_seq == 1
        assert len(finish_all(consumer)) == 100


def test_memory_is_not_kept(tmp_path: Path) -> None:
    with Rig(None) as rig:
        log, consumer = filled(rig, 1000)
        rig.engine.set_settings(log, {"keep": 60 * SECOND})
        finish_all(consumer)
        rig.settle()
        assert log.first_seq > 900


def test_settings_hold_after_a_restart(tmp_path: Path) -> None:
    with Rig(tmp_path / "a", segment_bytes=1024) as rig:
        log, consumer = filled(rig)
        settings = {"keep": 10**6 * SECOND, "sync": 2.5, "max_msgs": 1000}
        rig.engine.set_settings(log, settings)
        assert log.retention.limits == (0, 0, 1000)
        assert log.policy.sync == 2.5
        finish_all(consumer)
        rig.settle()
        rig.crash(tmp_path / "b")
    with Rig(tmp_path / "b", segment_bytes=1024) as rig:
        assert not rig.engine.problems
        log = rig.engine.log("t")
        assert log.settings == settings
        assert rig.engine.settings_of(log) == {
            "sync": 2.5, "max_age": 0, "max_bytes": 0, "max_msgs": 1000,
            "keep": 10**6 * SECOND, "keep_bytes": 0,
        }  # fmt: skip
        assert log.first_seq == 1
        log.pause()
        rig.engine.set_settings(log, {})
        assert log.first_seq > 80
        assert rig.engine.settings_of(log)["sync"] == "none"


def test_a_limit_takes_effect_at_once(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1024) as rig:
        log, _ = filled(rig)
        rig.engine.set_settings(log, {"max_msgs": 20})
        assert log.first_seq > 50


def test_publishers_get_what_they_wait_for_when_the_policy_changes(tmp_path: Path) -> None:
    for policies in (("always", "none"), ("none", "always"), (1, "always"), ("always", 1)):
        with Rig(tmp_path / str(policies), sync=policies[0]) as rig:
            log = rig.log()
            log.open_cursor("c")
            assert rig.publish(log, numbered(3)) == [1] * 3
            rig.engine.set_settings(log, {"sync": policies[1]})
            assert rig.publish(log, numbered(3)) == [1] * 3
            rig.advance(3)
            if policies[1] != "none":
                assert not log.sync.unsynced


def test_settings_that_cannot_be_stored_change_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1024) as rig:
        log, _ = filled(rig)
        (tmp_path / "t" / "meta.json.new").mkdir()
        with pytest.raises(OSError, match="meta"):
            rig.engine.set_settings(log, {"max_msgs": 20})
        assert (log.settings, log.retention.limits, log.first_seq) == ({}, None, 1)


@pytest.mark.parametrize("garbage", [[], {"sync": "x"}, {"keep": -1}, {"max_msgs": True}, {"a": 1}])
def test_settings_that_make_no_sense_are_reported(tmp_path: Path, garbage: object) -> None:
    with Rig(tmp_path) as rig:
        filled(rig)
        rig.close()
    meta = tmp_path / "t" / "meta.json"
    meta.write_bytes(orjson.dumps({**orjson.loads(meta.read_bytes()), "settings": garbage}))
    with Rig(tmp_path) as rig:
        assert "settings" in rig.engine.problems[0]
        log = rig.engine.log("t")
        assert log.settings == {}
        assert log.cursors["c"].depth == 100
