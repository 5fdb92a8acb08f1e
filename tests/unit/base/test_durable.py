"""Folders and small files whose names are on the disk, also when a sync has failed before."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.base import durable


class Syncs:
    """fsync of folders: which were synced, and how many pass before one fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[Path] = []
        self.left = 1 << 20
        self.real = os.fsync
        monkeypatch.setattr(os, "fsync", self.sync)

    def sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            if self.left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.left -= 1
            self.synced.append(path)
        self.real(descriptor)

    def fail_after(self, count: int) -> None:
        self.left = count

    def heal(self) -> None:
        self.left = 1 << 20
        self.synced.clear()


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_the_names_of_all_folders_that_were_made(tmp_path: Path, syncs: Syncs, passed: int) -> None:
    folder = tmp_path / "a" / "b" / "c"
    syncs.fail_after(passed)
    with pytest.raises(OSError, match="Input/output"):
        durable.make_folder(folder)
    syncs.heal()
    durable.make_folder(folder)
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(syncs.synced)


def test_a_folder_that_somebody_uses_is_not_removed(tmp_path: Path, syncs: Syncs) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x")
    syncs.fail_after(0)
    with pytest.raises(OSError, match="Input/output"):
        durable.make_folder(tmp_path / "a")
    with pytest.raises(OSError, match="Input/output"):
        durable.make_folder(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "file"]


def test_a_file_in_a_folder_whose_first_sync_failed(tmp_path: Path, syncs: Syncs) -> None:
    path = tmp_path / "a" / "state.json"
    syncs.fail_after(0)
    with pytest.raises(OSError, match="Input/output"):
        durable.save(path, b"one")
    syncs.heal()
    durable.save(path, b"two")
    assert {tmp_path, tmp_path / "a"} <= set(syncs.synced)
    assert durable.unsealed(path.read_bytes()) == b"two"


def test_a_folder_is_removed_or_an_error_says_that_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    durable.remove_folder(folder)  # there is none
    (folder / "inner").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", failing)
        with pytest.raises(OSError, match="Input/output"):
            durable.remove_folder(folder)
    durable.remove_folder(folder)
    assert not folder.exists()


def failing(*_args: object, **_more: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
