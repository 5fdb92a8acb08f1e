"""The file of clients of NATS Streaming: what is in it after a disk that was full, or failed."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.protocols.stan import limits
from broker.protocols.stan.store import FILE, ClientRecord, Store


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Files of this process may not grow beyond that: the last write is cut."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("more", range(1, 60, 7))
def test_what_follows_a_line_that_was_cut_is_read(tmp_path: Path, more: int) -> None:
    store = Store(tmp_path, "c")
    store.add_client(ClientRecord("before", "hb"))
    with full_at((tmp_path / FILE).stat().st_size + more):
        for name in ("refused", "too"):
            with pytest.raises(OSError, match=r"No space|too large"):
                store.add_client(ClientRecord(name, "hb"))
    store.add_client(ClientRecord("after", "hb"))
    assert set(Store(tmp_path, "c").clients) == set(store.clients) == {"before", "after"}


async def test_a_file_that_cannot_be_written_anew_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to be remembered is, in the old one."""
    monkeypatch.setattr(limits, "STAN_STATE_BYTES_MIN", 1)
    store = Store(tmp_path, "c", waits=True)
    blocked = (tmp_path / FILE).with_suffix(".new")
    blocked.mkdir()
    for number in range(50):
        store.add_client(ClientRecord(f"client{number}", "hb"))
    await safe(store)
    blocked.rmdir()
    assert len(known(tmp_path)) == 50
    for _ in range(500):
        store.add_client(ClientRecord("client0", "hb"))
    await safe(store)
    assert (tmp_path / FILE).stat().st_size < 50_000
    assert len(known(tmp_path)) == 50
    await store.close()


def known(folder: Path) -> set[str]:
    """Who is remembered, by what is in the folder now."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copy(folder / FILE, copy)
        return set(Store(Path(copy), "c").clients)


def copies(folder: Path) -> list[bytes]:
    """What was put aside."""
    return [path.read_bytes() for path in folder.glob("*.unreadable*")]


async def safe(store: Store) -> None:
    """Until all that was written is on the disk. OSError."""
    done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    store.when_safe(done.set_result)
    problem = await done
    if problem is not None:
        raise problem


class SlowDisk:
    """Syncs wait until a test lets them go on, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.threads: set[int] = set()
        self.error = 0
        real = os.fdatasync

        def wait(fd: int) -> None:
            self.threads.add(threading.get_ident())
            self.begun.set()
            assert self.may_end.wait(60)
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            real(fd)

        monkeypatch.setattr(os, "fdatasync", wait)


@pytest.mark.parametrize("torn", [b"", b"0123", b"01234567 broken\n"])
async def test_it_starts_where_the_file_cannot_be_written_anew(tmp_path: Path, torn: bytes) -> None:
    """As on a full disk: who is known is, and what follows is written down as well."""
    before = Store(tmp_path, "c", waits=True)
    before.add_client(ClientRecord("before", "hb"))
    await before.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(torn)
    whole = (tmp_path / FILE).read_bytes()
    blocked = (tmp_path / FILE).with_suffix(".new")
    blocked.mkdir()
    store = Store(tmp_path, "c", waits=True)
    assert set(store.clients) == {"before"}
    store.add_client(ClientRecord("after", "hb"))
    blocked.rmdir()
    await safe(store)
    await store.close()
    assert known(tmp_path) == {"before", "after"}
    assert copies(tmp_path) == ([whole] if torn else [])


def test_copies_of_what_does_not_read_stay(tmp_path: Path) -> None:
    Store(tmp_path, "c").add_client(ClientRecord("one", "hb"))
    for number in range(3):
        with (tmp_path / FILE).open("ab") as file:
            file.write(b"%d does not read\n" % number)
        assert set(Store(tmp_path, "c").clients) == {"one"}
    assert len(copies(tmp_path)) == 3


async def test_nobody_waits_for_the_disk_while_the_file_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STAN_STATE_BYTES_MIN", 1)
    store = Store(tmp_path, "c", waits=True)
    disk = SlowDisk(monkeypatch)
    for number in range(50):
        store.add_client(ClientRecord(f"client{number}", "hb"))
        store.remove_client(f"client{number}")
    waiting = asyncio.create_task(safe(store))
    await asyncio.to_thread(disk.begun.wait, 60)
    store.add_client(ClientRecord("meanwhile", "hb"))  # this thread goes on
    assert known_now(tmp_path) == {"meanwhile"}  # a kill at this moment loses nothing
    assert not waiting.done()
    disk.may_end.set()
    await waiting
    assert (tmp_path / FILE).stat().st_size < 1000
    store.add_client(ClientRecord("later", "hb"))
    assert known_now(tmp_path) == {"meanwhile", "later"}
    assert threading.get_ident() not in disk.threads
    await store.close()


def known_now(folder: Path) -> set[str]:
    """As `known`, while syncs wait."""
    store = Store(None, "c")
    store._path = folder / FILE
    store._read()
    return set(store.clients)


async def test_a_disk_that_fails_while_the_file_is_written_anew_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STAN_STATE_BYTES_MIN", 1)
    store = Store(tmp_path, "c", waits=True)
    with monkeypatch.context() as patch:
        disk = SlowDisk(patch)
        disk.may_end.set()
        disk.error = errno.EIO
        for number in range(50):
            store.add_client(ClientRecord(f"client{number}", "hb"))
        with pytest.raises(OSError, match="Input/output"):
            await safe(store)
        assert len(known_now(tmp_path)) == 50
        with pytest.raises(OSError, match="Input/output"):
            await safe(store)  # and is not believed the second time
        assert len(known_now(tmp_path)) == 50
    await safe(store)
    assert len(known_now(tmp_path)) == 50
    await store.close()


@pytest.mark.parametrize("data", [b"", b"\n"])
def test_a_file_without_its_first_line_is_not_taken_for_an_empty_one(
    tmp_path: Path, data: bytes
) -> None:
    """Else the durables in the channels would be dropped: nobody remembers them."""
    Store(tmp_path, "c").add_client(ClientRecord("one", "hb"))
    (tmp_path / FILE).write_bytes(data)
    store = Store(tmp_path, "c")
    (problem,) = store.problems
    assert "do not read" in problem or "first line" in problem
    assert not Store(tmp_path, "c").problems
    assert not Store(tmp_path / "new", "c").problems


async def test_a_new_file_has_its_first_line_although_it_could_not_be_rewritten(
    tmp_path: Path,
) -> None:
    obstacle = tmp_path / f"{Path(FILE).stem}.new"
    obstacle.mkdir()
    store = Store(tmp_path, "c")
    store.add_client(ClientRecord("one", "hb"))
    with pytest.raises(OSError, match="directory"):
        store.sync()  # the file is doubtful until it is rewritten
    again = Store(tmp_path, "c")
    assert (set(again.clients), again.problems) == ({"one"}, [])
    obstacle.rmdir()
    again.sync()
    assert known_now(tmp_path) == {"one"}
    await again.close()
    await store.close()


@pytest.mark.parametrize("room", [0, 5])
def test_a_new_file_without_room_for_its_first_line_is_removed(tmp_path: Path, room: int) -> None:
    with full_at(room):
        store = Store(tmp_path, "c")
        with pytest.raises(OSError, match=r"space|too large"):
            store.add_client(ClientRecord("one", "hb"))
    assert not (tmp_path / FILE).exists()


def test_a_new_file_that_cannot_be_written_at_all_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_fd: int, _data: bytes) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        Store(tmp_path, "c")
    assert not (tmp_path / FILE).exists()
    assert not Store(tmp_path, "c").problems


@pytest.mark.parametrize("more", [False, True])
def test_a_client_of_which_only_the_line_end_was_not_written_is_refused(
    tmp_path: Path, more: bool
) -> None:
    store = Store(tmp_path, "c")
    store.add_client(ClientRecord("1", "hb"))
    size = (tmp_path / FILE).stat().st_size
    store.add_client(ClientRecord("2", "hb"))
    line_bytes = (tmp_path / FILE).stat().st_size - size
    with full_at(size + 2 * line_bytes - 1), pytest.raises(OSError, match="space"):
        store.add_client(ClientRecord("3", "hb"))
    if more:
        store.add_client(ClientRecord("4", "hb"))
    assert set(Store(tmp_path, "c").clients) == {"1", "2"} | ({"4"} if more else set())


async def test_a_disk_that_fails_again_and_again_is_one_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = Store(tmp_path, "c", waits=True)
    for _ in range(2):
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", full)
            for _ in range(3):
                with pytest.raises(OSError, match="No space"):
                    await safe(store)
        assert caplog.text.count("No space") == 1
        await safe(store)
    await store.close()
