"""A log that cannot be opened stops nothing but itself."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine import Rig, drain, make_log, numbered, segment_files

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.files import META, QuarantinedError, crc_of

BODIES = numbered(5)
HEADER = 64


def no_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def dangling(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder.with_name("nowhere"))


def meta_is_a_folder(folder: Path) -> None:
    (folder / META).unlink()
    (folder / META).mkdir()


def foreign_metadata(folder: Path) -> None:
    meta = json.loads((folder / META).read_text())
    page = {**meta, "version": 7}
    del page["crc"]
    (folder / META).write_text(json.dumps({**page, "crc": crc_of(page)}))


def other_name(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("well"), folder)


def foreign_segment(folder: Path) -> None:
    data = bytearray((folder / f"{1:020d}.seg").read_bytes())
    data[8] = 9
    (folder / f"{1:020d}.seg").write_bytes(data)


def segment_is_a_folder(folder: Path) -> None:
    (folder / f"{1:020d}.seg").unlink()
    (folder / f"{1:020d}.seg").mkdir()


def no_metadata_no_header(folder: Path) -> None:
    (folder / META).write_bytes(b"")
    data = (folder / f"{1:020d}.seg").read_bytes()
    (folder / f"{1:020d}.seg").write_bytes(b"x" * HEADER + data[HEADER:])


def cursors_is_a_file(folder: Path) -> None:
    shutil.rmtree(folder / "cursors")
    (folder / "cursors").write_text("")


def foreign_journal(folder: Path) -> None:
    data = bytearray((folder / "cursors" / "c.cur").read_bytes())
    data[8] = 2
    (folder / "cursors" / "c.cur").write_bytes(data)


DAMAGE = [
    no_folder,
    dangling,
    meta_is_a_folder,
    foreign_metadata,
    other_name,
    foreign_segment,
    segment_is_a_folder,
    no_metadata_no_header,
    cursors_is_a_file,
    foreign_journal,
]


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is below a folder."""
    if not folder.is_dir():
        return {"": folder.read_bytes() if folder.exists() else None}
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def two_logs(root: Path) -> None:
    make_log(root, BODIES)
    with Rig(root) as rig:
        log = rig.log("well")
        log.open_cursor("c")
        assert rig.publish(log, BODIES) == [1] * len(BODIES)
        rig.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_others_start_and_nothing_of_it_changes(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    two_logs(tmp_path)
    folder = tmp_path / "t"
    damage(folder)
    before = contents(folder)
    found = [*BODIES]
    for more in (b"one", b"two"):
        with Rig(tmp_path) as rig:
            assert list(rig.engine.logs) == ["well"]
            assert rig.engine.quarantined == {"t": str(folder)}
            (problem,) = rig.engine.shared.health.problems()
            assert (problem.kind, problem.name) == ("log", "t")
            assert problem.reason.removeprefix("quarantined: ")
            with pytest.raises(QuarantinedError) as refused:
                rig.log("t")
            assert refused.value.errno == errno.EIO
            assert rig.publish(rig.log("well"), [more]) == [1]
            found.append(more)
            consumer = LocalConsumer(rig.engine.log("well").cursors["c"], 100)
            assert sorted(drain(rig, consumer, 3)) == sorted(found)
            consumer.leave()
            rig.advance(3.0)
            rig.close()
        assert contents(folder) == before


def test_it_is_opened_again_when_it_was_mended(tmp_path: Path) -> None:
    two_logs(tmp_path)
    folder = tmp_path / "t"
    whole = (folder / META).read_bytes()
    foreign_metadata(folder)
    with Rig(tmp_path) as rig:
        seen = []
        rig.engine.watch(lambda *what: seen.append(what))
        with pytest.raises(QuarantinedError):
            rig.engine.retry("t")
        assert "t" in rig.engine.quarantined
        assert rig.engine.shared.health.has("log", "t")
        (folder / META).write_bytes(whole)
        log = rig.engine.retry("t")
        assert rig.engine.log("t") is log
        assert seen == [("t", None, True)]
        assert not rig.engine.quarantined
        assert rig.engine.shared.health.first() is None
        consumer = LocalConsumer(log.cursors["c"], 100)
        assert list(drain(rig, consumer, 3)) == BODIES
        with pytest.raises(KeyError):
            rig.engine.retry("t")
        rig.close()


def test_it_is_put_aside_and_made_again(tmp_path: Path) -> None:
    two_logs(tmp_path)
    foreign_metadata(tmp_path / "t")
    before = contents(tmp_path / "t")
    with Rig(tmp_path) as rig:
        aside = rig.engine.put_aside("t")
        assert Path(aside).name.startswith(".unreadable-t-")
        assert contents(Path(aside)) == before
        assert rig.engine.shared.health.first() is None
        assert rig.publish(rig.log("t"), [b"new"]) == [1]
        rig.close()
    with Rig(tmp_path) as rig:
        assert sorted(rig.engine.logs) == ["t", "well"]
        assert rig.engine.shared.health.first() is None
        assert contents(Path(aside)) == before
        rig.close()


# --- what a power cut leaves of a new log


@pytest.mark.parametrize("size", [0, 40, HEADER, 4096])
def test_empty_files_of_a_new_log_are_put_aside(tmp_path: Path, size: int) -> None:
    two_logs(tmp_path)
    folder = tmp_path / "t"
    shutil.rmtree(folder / "cursors")
    (folder / META).write_bytes(b"")
    (folder / f"{1:020d}.seg").write_bytes(bytes(size))
    with Rig(tmp_path) as rig:
        assert list(rig.engine.logs) == ["well"]
        assert not rig.engine.quarantined
        assert rig.engine.shared.health.first() is None
        assert any("put aside" in problem for problem in rig.engine.problems)
        (aside,) = tmp_path.glob(".unreadable-*")
        assert {path.name for path in aside.iterdir()} == {META, f"{1:020d}.seg"}
        assert rig.publish(rig.log("t"), [b"new"]) == [1]
        rig.close()
    with Rig(tmp_path) as rig:
        assert rig.engine.log("t").depth == 1
        assert rig.engine.problems == []
        rig.close()


def test_channels_are_kept_where_only_the_records_are_gone(tmp_path: Path) -> None:
    """The creation of the channel was acknowledged: it gets what is published next."""
    make_log(tmp_path, [])
    folder = tmp_path / "t"
    (folder / META).unlink()
    for file in segment_files(tmp_path):
        file.write_bytes(b"")
    with Rig(tmp_path) as rig:
        log = rig.engine.log("t")
        assert list(log.cursors) == ["c"]
        assert rig.publish(log, [b"new"]) == [1]
        consumer = LocalConsumer(log.cursors["c"], 10)
        assert list(drain(rig, consumer, 3)) == [b"new"]
        rig.close()


@pytest.mark.parametrize(("meta", "header"), [(b"", b"x"), (b"x", b""), (b"x", b"x")])
def test_one_byte_of_metadata_or_header_is_enough_to_keep_it_in_place(
    tmp_path: Path, meta: bytes, header: bytes
) -> None:
    two_logs(tmp_path)
    folder = tmp_path / "t"
    shutil.rmtree(folder / "cursors")
    (folder / META).write_bytes(meta)
    (folder / f"{1:020d}.seg").write_bytes(header.ljust(2 << 20, b"\0") + b"x")
    with Rig(tmp_path) as rig:
        assert list(rig.engine.quarantined) == ["t"]
    assert folder.is_dir()


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    two_logs(tmp_path)
    (tmp_path / "lost+found").mkdir(mode=0)
    (tmp_path / ".unreadable-x").mkdir()
    (tmp_path / ".hidden").write_text("mine")
    with Rig(tmp_path) as rig:
        assert sorted(rig.engine.logs) == ["t", "well"]
        assert rig.engine.shared.health.first() is None
        rig.close()
    assert (tmp_path / ".hidden").read_text() == "mine"
