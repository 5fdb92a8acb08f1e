"""Long segments are unmapped by a worker; nothing of them stays mapped."""

from __future__ import annotations

from pathlib import Path

from support.engine import Rig, bodies_of, numbered

from broker.engine.cursor.local import LocalConsumer

MIB = 1 << 20


def mappings(root: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{root}/t/")


def read_on(root: Path, segment_bytes: int, record_bytes: int) -> int:
    """Read three segments, with one record in each, and pass over two; jobs of the loader."""
    with Rig(root, segment_bytes=segment_bytes) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 0)
        bodies = numbered(3, size=record_bytes)
        rig.publish(log, bodies)
        loader = rig.engine.shared.loader
        consumer.set_credit(1)
        rig.settle()
        assert mappings(root) == 1
        before: int = loader.submitted
        consumer.set_credit(3)
        rig.settle()
        assert bodies_of(consumer) == bodies
        assert mappings(root) == 1
        return loader.submitted - before


def test_long_segments_are_unmapped_by_a_worker(tmp_path: Path) -> None:
    assert read_on(tmp_path, 4 * MIB, 3 * MIB) == 2


def test_short_ones_are_unmapped_at_once(tmp_path: Path) -> None:
    assert read_on(tmp_path, 64 * 1024, 50 * 1024) == 0


def test_a_dropped_segment_is_unmapped_too(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=4 * MIB) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 10)
        rig.publish(log, numbered(2, size=3 * MIB))
        first, second = (record[0] for record in consumer.records)
        consumer.finish(second)
        consumer.finish(first)
        rig.settle()
        assert len(log.segments) == 1
        rig.until(lambda: rig.engine.shared.loader.idle)
        assert mappings(tmp_path) <= 1
