"""Metadata that are lost, damaged or of an older build, and what a log without its own may drop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.engine import Rig, finish_all, numbered, segment_files

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.files import GarbledMetaError, MetaError, crc_of, load_meta

SMALL: dict[str, Any] = {"segment_bytes": 600}


def meta(root: Path, name: str = "t") -> Path:
    return root / name / "meta.json"


def channel(root: Path, owner: str | None = None, **settings: Any) -> int:
    """A log in several files that its only cursor is done with, and its metadata are gone."""
    with Rig(root, **SMALL) as rig:
        log = rig.engine.open_log("t", protocol=owner, retention="limits" if owner else "acked")
        if settings:
            rig.engine.set_settings(log, settings)
        consumer = LocalConsumer(log.open_cursor("c"), 1000)
        log.open_cursor("audit")
        rig.publish(log, numbered(40))
        finish_all(consumer)
        rig.settle()
        rig.close()
    meta(root).write_bytes(b"")
    return len(segment_files(root))


def finish_with(rig: Rig, log: Any) -> None:
    """Every cursor is done with everything, and the housekeeping has looked."""
    consumer = LocalConsumer(log.cursors["audit"], 1000)
    rig.settle()
    finish_all(consumer)
    rig.settle()
    rig.advance(2)


def old_header(path: Path) -> None:
    """As builds wrote it that said nothing of the owner."""
    from broker.engine.log.record import crc32c

    data = bytearray(path.read_bytes())
    data[48:64] = bytes(16)
    data[12:16] = crc32c(bytes(data[16:64])).to_bytes(4, "little")
    path.write_bytes(data)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.engine.open_log("t", protocol="stan", retention="limits").pause()
        rig.close()
    good = meta(tmp_path).read_bytes()
    expected = load_meta(str(tmp_path / "t"))
    for at in range(len(good)):
        for bit in range(8):
            data = bytearray(good)
            data[at] ^= 1 << bit
            meta(tmp_path).write_bytes(data)
            try:
                found = load_meta(str(tmp_path / "t"))
            except GarbledMetaError:
                continue
            assert found == expected, f"{bytes(data)!r}"


def test_metadata_without_a_checksum_are_read(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.engine.open_log("t", protocol="stan", retention="limits").pause()
        rig.close()
    page = orjson.loads(meta(tmp_path).read_bytes())
    del page["crc"]
    meta(tmp_path).write_bytes(orjson.dumps(page))
    with Rig(tmp_path) as rig:
        log = rig.engine.log("t")
        assert log is not None
        assert log.paused
        assert (log.protocol, log.unclaimed) == ("stan", False)


def test_only_a_whole_file_of_another_version_is_one(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.log()
        rig.close()
    page = orjson.loads(meta(tmp_path).read_bytes())
    page["version"] = 2
    meta(tmp_path).write_bytes(orjson.dumps(page))
    with pytest.raises(GarbledMetaError):
        load_meta(str(tmp_path / "t"))
    del page["crc"]
    meta(tmp_path).write_bytes(orjson.dumps({**page, "crc": crc_of(page)}))
    with pytest.raises(MetaError, match="version 2"):
        load_meta(str(tmp_path / "t"))


def test_lost_metadata_are_written_again(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        assert rig.publish(rig.log(), numbered(3)) == [1] * 3
        rig.close()
    meta(tmp_path).unlink()
    with Rig(tmp_path, sync="always") as rig:
        assert meta(tmp_path).exists()
        assert rig.publish(rig.log(), numbered(3)) == [1] * 3
        rig.close()
    with Rig(tmp_path) as rig:
        assert rig.engine.problems == []


def test_damaged_metadata_are_kept(tmp_path: Path) -> None:
    channel(tmp_path)
    meta(tmp_path).write_bytes(b"{garbage")
    with Rig(tmp_path, **SMALL):
        assert meta(tmp_path).with_name("meta.json.unreadable").read_bytes() == b"{garbage"


@pytest.mark.parametrize("owner", [None, "stan"])
def test_segments_say_whose_the_log_is(tmp_path: Path, owner: str | None) -> None:
    channel(tmp_path, owner)
    with Rig(tmp_path, **SMALL) as rig:
        log = rig.engine.log("t")
        assert log is not None
        assert (log.protocol, log.unclaimed) == (owner, False)
        finish_with(rig, log)
        assert (len(segment_files(tmp_path)) == 1) == (owner is None)


def test_a_protocol_that_comes_later_is_in_the_header_too(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.publish(rig.log(), numbered(3))
        rig.engine.open_log("t", protocol="stan", retention="limits")
        rig.close()
    meta(tmp_path).unlink()
    with Rig(tmp_path) as rig:
        log = rig.engine.log("t")
        assert log is not None
        assert (log.protocol, log.unclaimed) == ("stan", False)


@pytest.mark.parametrize("old", [True, False])
def test_an_unclaimed_log_drops_nothing(tmp_path: Path, old: bool) -> None:
    files = channel(tmp_path, **({} if old else {"keep": 7 * 86400 * 10**9}))
    if old:
        for path in segment_files(tmp_path):
            old_header(path)
    for _ in range(2):  # it is remembered
        with Rig(tmp_path, **SMALL) as rig:
            log = rig.engine.log("t")
            assert log is not None
            assert log.unclaimed
            finish_with(rig, log)
            rig.engine.set_settings(log, {"max_msgs": 1})
            rig.advance(2)
            assert len(segment_files(tmp_path)) >= files
            rig.engine.set_settings(log, {})
            rig.close()
    with Rig(tmp_path, **SMALL) as rig:
        log = rig.engine.log("t")
        assert log is not None
        log.claim()
        rig.advance(2)
        assert len(segment_files(tmp_path)) < files
        rig.close()
    with Rig(tmp_path, **SMALL) as rig:
        assert not rig.engine.log("t").unclaimed  # type: ignore[union-attr]
