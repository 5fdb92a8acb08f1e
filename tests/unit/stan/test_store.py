"""The file of clients of NATS Streaming: what is in it after a disk that was full, or failed."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker import limits
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


def test_a_file_that_cannot_be_written_anew_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to be remembered is, in the old one."""
    monkeypatch.setattr(limits, "STAN_STATE_BYTES_MIN", 1)
    store = Store(tmp_path, "c")
    blocked = (tmp_path / FILE).with_suffix(".new")
    blocked.mkdir()
    for number in range(50):
        store.add_client(ClientRecord(f"client{number}", "hb"))
    blocked.rmdir()
    assert len(Store(tmp_path, "c").clients) == 50
    for _ in range(500):
        store.add_client(ClientRecord("client0", "hb"))
    assert (tmp_path / FILE).stat().st_size < 50_000
    assert len(Store(tmp_path, "c").clients) == 50
