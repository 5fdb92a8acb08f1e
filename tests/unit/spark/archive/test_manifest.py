"""The manifest: what counts, after whatever end of whoever wrote it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.spark import manifest as public
from broker.spark.archive.manifest import Change, DataFile, Gap, Manifest, State, files, publish
from broker.spark.jobs.errors import ConflictError, JobError
from broker.spark.jobs.limits import SNAPSHOT_EVERY
from broker.spark.offsets import Offset, OffsetRange

INC = "9f3a12bc"


def change(
    start: int, end: int, topic: str = "t", incarnation: str = INC, batch: str = ""
) -> Change:
    """A file with all seqs of [start, end), written in microsecond `seq`."""
    path = (
        f"topic={topic}/date=2026-11-21/hour=15/{topic}-0-{start}-{end - 1}-{incarnation}.parquet"
    )
    one = DataFile(path, topic, 0, incarnation, start, end - 1, end - start, 99, start, end - 1)
    return Change("archive", batch, (one,), (), (OffsetRange(topic, 0, incarnation, start, end),))


def always(_state: State) -> bool:
    return True


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    made = Manifest(tmp_path / "lake")
    made.create()
    return made


def test_versions_add_up(manifest: Manifest) -> None:
    state = manifest.commit(change(1, 10, batch="one"), State(), always)
    state = manifest.commit(change(10, 20, batch="two"), state, always)
    gap = Gap("t", 0, INC, 20, 30, "trimmed")
    manifest.commit(Change("archive", "three", gaps=(gap,)), state, always)
    state = manifest.load()
    assert (state.version, state.batch) == (3, "three")
    assert state.ranges == [OffsetRange("t", 0, INC, 1, 20)]
    assert state.offsets == {("t", 0): Offset(20, INC)}
    assert state.gaps == [gap]
    assert len(state.files) == 2


def test_a_snapshot_is_the_same_and_old_versions_go(manifest: Manifest) -> None:
    state = State()
    for n in range(2 * SNAPSHOT_EVERY + 3):
        state = manifest.commit(change(10 * n, 10 * n + 10, f"t{n % 3}"), state, always)
    names = {path.name for path in manifest.folder.iterdir()}
    assert f"v{SNAPSHOT_EVERY:012d}.json" not in names
    assert f"s{2 * SNAPSHOT_EVERY:012d}.json.gz" in names
    loaded = manifest.load()
    assert loaded == state
    assert len(loaded.files) == 2 * SNAPSHOT_EVERY + 3


def test_records_cannot_count_twice(manifest: Manifest) -> None:
    state = manifest.commit(change(1, 10), State(), always)
    with pytest.raises(ConflictError):
        manifest.commit(change(1, 10), state, always)
    with pytest.raises(ConflictError):
        manifest.commit(change(9, 12), state, always)
    with pytest.raises(ConflictError):
        manifest.commit(Change("compact", remove=("no/such/file",)), state, always)
    state = manifest.commit(change(1, 10, incarnation="another"), state, always)
    assert state.offsets == {("t", 0): Offset(10, "another")}


def test_of_two_writers_the_second_looks_again(manifest: Manifest) -> None:
    state = manifest.commit(change(1, 10), State(), always)
    stale = manifest.load()
    manifest.commit(change(1, 10, "other"), state, always)
    done = manifest.commit(change(10, 20), stale, lambda now: now.version == 2)
    assert done.version == 3
    assert len(done.files) == 3


def test_of_two_writers_of_the_same_the_second_is_refused(manifest: Manifest) -> None:
    stale = manifest.load()
    manifest.commit(change(1, 10), manifest.load(), always)
    with pytest.raises(ConflictError):
        manifest.commit(change(1, 8), stale, lambda now: not now.offsets)
    with pytest.raises(ConflictError):  # and if it does not notice
        manifest.commit(change(1, 8), State(), always)
    assert len(manifest.load().files) == 1


def test_who_was_away_for_two_snapshots_writes_no_version_that_is_never_read(
    manifest: Manifest,
) -> None:
    """`compact` takes hours, and removes files as soon as its version is written."""
    state = manifest.commit(change(1, 10, "day"), State(), always)
    stale = manifest.load()
    for n in range(2 * SNAPSHOT_EVERY + 3):
        state = manifest.commit(change(10 * n, 10 * n + 10), state, always)
    (old,) = stale.files
    new = stale.files[old]._replace(path="day.parquet")
    swap = Change("compact", add=(new,), remove=(old,))
    done = manifest.commit(swap, stale, lambda now: old in now.files)
    loaded = manifest.load()
    assert loaded == done
    assert "day.parquet" in loaded.files
    assert old not in loaded.files


def test_who_was_slow_to_write_its_version_looks_again(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still between looking and writing, until the name was free once more."""
    first = manifest.commit(change(1, 10, "day"), State(), always)
    link = os.link

    def late(temp: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        state = first
        for n in range(2 * SNAPSHOT_EVERY + 3):
            state = manifest.commit(change(10 * n, 10 * n + 10), state, always)
        link(temp, path)

    monkeypatch.setattr(os, "link", late)
    done = manifest.commit(change(10, 20, "day"), first, always)
    assert manifest.load() == done
    assert len(done.files) == 2 * SNAPSHOT_EVERY + 5


def test_a_snapshot_by_somebody_else_right_behind_a_version_has_it(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    for n in range(SNAPSHOT_EVERY - 2):
        state = manifest.commit(change(10 * n, 10 * n + 10), state, always)
    link = os.link

    def first(temp: Path, path: Path) -> None:
        link(temp, path)
        monkeypatch.setattr(os, "link", link)
        manifest.commit(change(1, 10, "other"), manifest.load(), always)

    monkeypatch.setattr(os, "link", first)
    done = manifest.commit(change(10**6, 10**6 + 1), state, always)
    assert done.version == SNAPSHOT_EVERY - 1
    assert manifest.load().version == SNAPSHOT_EVERY
    assert len(manifest.load().files) == SNAPSHOT_EVERY


def test_removed_files_are_remembered(manifest: Manifest) -> None:
    state = manifest.commit(change(1, 10), State(), always)
    old = next(iter(state.files))
    (new,) = change(1, 10).add
    new = new._replace(path="topic=t/date=2026-11-21/hour=x/day.parquet")
    manifest.commit(Change("compact", add=(new,), remove=(old,)), state, always)
    state = manifest.load()
    assert list(state.files) == [new.path]
    assert state.trash == (old,)
    assert state.offsets == {("t", 0): Offset(10, INC)}


def test_files_by_topic_and_time(manifest: Manifest) -> None:
    state = manifest.commit(change(1, 10), State(), always)
    state = manifest.commit(change(10, 20), state, always)
    manifest.commit(change(1, 10, "other"), state, always)

    def at(us: int) -> datetime:
        return datetime.fromtimestamp(us / 1e6, UTC)

    found = files(manifest.archive, ["t"], at(5), at(10))
    assert [Path(path).name for path in found] == [f"t-0-1-9-{INC}.parquet"]
    assert len(files(manifest.archive, since=at(9), until=at(10))) == 2
    assert len(files(manifest.archive, ["t"])) == 2


def test_one_job_at_a_time(manifest: Manifest) -> None:
    other = Manifest(manifest.archive)
    with (
        manifest.lock("archive"),
        other.lock("compact"),
        pytest.raises(JobError, match="another archive job"),
        other.lock("archive"),
    ):
        pass
    with other.lock("archive"):
        pass


def test_notes(manifest: Manifest) -> None:
    assert manifest.saved("pending.json") is None
    manifest.save("pending.json", {"a": [1]})
    assert manifest.saved("pending.json") == {"a": [1]}
    manifest.remove_saved("pending.json")
    assert manifest.saved("pending.json") is None


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_number: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "x.json"
    publish(path, b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        publish(path, b"new")
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_what_does_not_read_is_reported(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="is not an archive"):
        Manifest(tmp_path).load()
    with pytest.raises(JobError, match="is a URI"):
        Manifest("s3://bucket/lake")
    manifest.commit(change(1, 10), State(), always)
    path = manifest.folder / "v000000000001.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    with pytest.raises(JobError, match=r"v000000000001.json is damaged"):
        manifest.load()
    value = json.loads(whole)
    path.write_text(json.dumps({**value, "format": 2}))
    with pytest.raises(JobError, match="has format 2"):
        manifest.load()
    path.rename(manifest.folder / "v000000000002.json")
    with pytest.raises(JobError, match="version 1 of the manifest is missing"):
        manifest.load()


def test_the_name_that_users_import() -> None:
    assert public.files is files
