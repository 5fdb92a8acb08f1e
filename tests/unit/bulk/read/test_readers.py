"""Readers and what they hold: on a real engine, with files, time and failures of a test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.engine import Rig, finish_all, limit, numbered

from broker.base import durable as files
from broker.bulk import limits
from broker.bulk.errors import RefusedError
from broker.bulk.read import readers as module
from broker.bulk.read.readers import GONE, IN_MEMORY, OK, OTHER, Position, Readers, StoredReader
from broker.engine.bulk.ranges import Range
from broker.engine.cursor.local import LocalConsumer

SEGMENT = 1000
TTL = 60


async def here(work: Callable[..., None], *arguments: object) -> None:
    """File work at once."""
    work(*arguments)


class Case:
    """An engine with a log of many files, and readers of it."""

    def __init__(self, root: Path, *, in_memory: bool = False) -> None:
        self.root = root
        self.now_ns = 0
        self.rig = Rig(None if in_memory else root / "logs", segment_bytes=SEGMENT)
        self.readers = self.open()

    def open(self) -> Readers:
        found = Readers(self.rig.engine, self.root / "readers", here, lambda: self.now_ns)
        found.load()
        return found

    def filled(self, name: str = "t", count: int = 100) -> Any:
        log = self.rig.log(name)
        log.open_cursor("c")
        for number in range(count):
            self.rig.publish(log, numbered(1, number))
        return log

    def finish(self, log: Any) -> None:
        """Let its cursor be done with everything, and the housekeeping look."""
        consumer = LocalConsumer(log.cursors["c"], 1 << 20)
        self.rig.settle()
        finish_all(consumer)
        consumer.leave()
        self.rig.advance(2)

    def put(self, name: str, log: Any, seq: int, *, hold: bool = True, **more: Any) -> None:
        at = Position(seq, more.pop("incarnation", log.log_id.hex()))
        kept = StoredReader(name, TTL, hold, {log.name: at}, 1)
        run(self.readers.put(kept, **more))

    def restart(self) -> None:
        self.rig.close()
        self.rig = Rig(self.root / "logs", segment_bytes=SEGMENT)
        self.readers = self.open()

    def later(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)
        run(self.readers.expire())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def case(tmp_path: Path):
    found = Case(tmp_path)
    with found.rig:
        yield found
        found.rig.close()


def test_without_a_hold_it_is_trimmed(case: Case) -> None:
    log = case.filled()
    case.finish(log)
    assert log.retention.readable_from > 80


def test_a_hold_keeps_what_is_not_read(case: Case) -> None:
    log = case.filled()
    case.put("r", log, 40)
    case.finish(log)
    first = log.retention.readable_from
    assert 40 - SEGMENT // 64 <= first <= 40
    case.put("r", log, 70)
    case.rig.advance(2)
    assert 70 - SEGMENT // 64 <= log.retention.readable_from <= 70


def test_the_slowest_reader_counts(case: Case) -> None:
    log = case.filled()
    for name, seq in (("a", 90), ("b", 30), ("c", 60)):
        case.put(name, log, seq)
    assert log.retention.retained_from == 30
    assert run(case.readers.delete("b"))
    assert log.retention.retained_from == 60
    case.put("c", log, 60, hold=False)
    assert log.retention.retained_from == 90
    case.put("a", log, 90, removed=["t"])
    assert log.retention.retained_from is None
    assert not run(case.readers.delete("b"))
    case.finish(log)
    assert log.retention.readable_from > 80


def test_limits_of_age_and_size_wait_too(case: Case) -> None:
    log = case.filled()
    case.put("r", log, 40)
    log.retention.configure((1, 1, 1))
    case.rig.advance(3)
    assert log.retention.readable_from <= 40
    run(case.readers.delete("r"))
    case.rig.advance(3)
    assert log.retention.readable_from > 80


def test_what_a_log_with_limits_gave_up_is_still_readable(tmp_path: Path) -> None:
    """Of a log whose limits are of single records the held ones are for the bulk API alone."""
    case = Case(tmp_path)
    with case.rig:
        log = case.rig.engine.open_log("t", False, "stan", "limits")
        for number in range(100):
            case.rig.publish(log, numbered(1, number))
        limit(log, msgs_max=100)
        case.put("r", log, 40)
        limit(log, msgs_max=10)
        case.rig.publish(log, numbered(1, 100))
        case.rig.advance(2)
        assert log.first_seq == 92
        assert log.retention.readable_from == 40
        found = Range(log, 40, 45, 1 << 20)
        found.read()
        assert found.count > 0
        run(case.readers.delete("r"))
        assert log.retention.readable_from == 92


def test_holds_survive_a_restart(case: Case) -> None:
    log = case.filled()
    case.put("r", log, 40)
    case.put("p", log, 10, hold=False)
    case.finish(log)
    case.restart()
    log = case.rig.engine.log("t")
    case.rig.advance(3)
    assert log.retention.readable_from <= 40
    assert log.retention.retained_from == 40
    assert case.readers.known["p"].stored.positions["t"].seq == 10


def test_a_hold_is_there_before_anything_is_trimmed(case: Case) -> None:
    """Everything is acked and only the hold keeps it; the start is the moment to go wrong."""
    log = case.filled()
    case.put("r", log, 1)
    case.finish(log)
    case.restart()
    assert case.rig.engine.log("t").retention.readable_from == 1
    case.rig.advance(3)
    assert case.rig.engine.log("t").retention.readable_from == 1


def test_who_is_not_heard_of_is_forgotten(case: Case) -> None:
    log = case.filled()
    case.put("r", log, 40)
    case.put("s", log, 50)
    case.finish(log)
    case.later(TTL - 1)
    case.put("s", log, 50)
    case.later(2)
    assert list(case.readers.known) == ["s"]
    assert log.retention.retained_from == 50
    assert case.readers.expired == 1
    assert [path.name for path in (case.root / "readers").iterdir()] == ["s.json"]
    case.later(TTL + 1)
    case.rig.advance(2)
    assert log.retention.readable_from > 80


def test_the_time_begins_anew_with_a_start(case: Case) -> None:
    log = case.filled()
    case.put("r", log, 40)
    case.now_ns += 10 * TTL * 10**9  # it was down for long
    case.restart()
    case.later(TTL - 1)
    assert list(case.readers.known) == ["r"]


def test_another_incarnation_holds_nothing(case: Case) -> None:
    log = case.filled()
    case.put("r", log, 40)
    position = case.readers.known["r"].stored.positions["t"]
    assert case.readers.state("t", position) == OK
    case.rig.engine.delete_log("t")
    assert case.readers.state("t", position) == GONE
    log = case.filled()
    assert case.readers.state("t", position) == OTHER
    case.put("s", log, 50)
    assert log.retention.retained_from == 50
    case.restart()
    assert case.rig.engine.log("t").retention.retained_from == 50


def test_nothing_is_held_in_memory(tmp_path: Path) -> None:
    """What a full log in memory keeps would turn its publishers away."""
    case = Case(tmp_path, in_memory=True)
    with case.rig:
        log = case.filled()
        case.put("r", log, 40)
        assert log.retention.retained_from is None
        assert case.readers.state("t", case.readers.known["r"].stored.positions["t"]) == IN_MEMORY


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_disk_that_is_full(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    log = case.filled()
    case.put("r", log, 40)
    case.later(TTL - 1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "save", full)
        for name in ("r", "new"):
            with pytest.raises(RefusedError, match="No space left"):
                case.put(name, log, 60)
        case.put("r", log, 40)  # nothing to write
    assert list(case.readers.known) == ["r"]
    assert log.retention.retained_from == 40
    case.later(TTL - 1)
    assert list(case.readers.known) == ["r"], "it was heard of"


def no_sync(_: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("again", [40, 60])
def test_a_place_in_doubt_is_written_again(
    case: Case, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """The new file has its name already when the sync of the folder fails."""
    log = case.filled()
    case.put("r", log, 40)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_path", no_sync)
        with pytest.raises(RefusedError, match="Input/output error"):
            case.put("r", log, 60)
    assert log.retention.retained_from == 40
    case.put("r", log, again)
    case.restart()
    assert case.readers.known["r"].stored.positions["t"].seq == again
    assert case.rig.engine.log("t").retention.retained_from == again


def test_a_delete_in_doubt(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is synced when it is asked for again; else the reader is there until it says so."""
    log = case.filled()
    case.put("r", log, 40)
    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_path", no_sync)
        for _ in range(2):
            with pytest.raises(RefusedError, match="Input/output error"):
                run(case.readers.delete("r"))
    case.put("r", log, 40)
    case.restart()
    assert list(case.readers.known) == ["r"]
    assert case.rig.engine.log("t").retention.retained_from == 40
    assert run(case.readers.delete("r"))


@pytest.mark.parametrize("heard", [True, False])
def test_while_a_file_does_not_read_everything_is_held(case: Case, heard: bool) -> None:
    """Nobody knows what its reader needs, until it says so or is deleted."""
    log = case.filled()
    case.put("r", log, 40)
    path = case.root / "readers" / "r.json"
    path.write_bytes(b"{")
    (case.root / "readers" / "x.json.new").write_bytes(b"")
    for _ in range(2):
        case.restart()
        log = case.rig.engine.log("t")
        assert case.readers.known == {}
        assert log.retention.retained_from == log.first_seq
        assert str(case.rig.engine.shared.health.first()).startswith("reader r: ")
        case.later(TTL * 10)
        assert log.retention.retained_from == log.first_seq
    if heard:
        case.put("r", log, 50)
        assert log.retention.retained_from == 50
    else:
        assert asyncio.run(case.readers.delete("r"))
        assert log.retention.retained_from is None
    assert case.rig.engine.shared.health.first() is None
    aside = path.with_name("r.json.unreadable")
    assert aside.read_bytes() == b"{"
    case.restart()
    assert case.rig.engine.shared.health.first() is None


def test_a_reader_whose_file_does_not_read_and_cannot_be_written(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = case.filled()
    case.put("r", log, 40)
    (case.root / "readers" / "r.json").write_bytes(b"{")
    case.restart()
    log = case.rig.engine.log("t")
    with monkeypatch.context() as patch:
        patch.setattr(module, "save", full)
        with pytest.raises(RefusedError):
            case.put("r", log, 50)
    for _ in range(2):
        assert log.retention.retained_from == log.first_seq
        assert str(case.rig.engine.shared.health.first()).startswith("reader r: ")
        case.restart()
        log = case.rig.engine.log("t")


def test_names_are_files(case: Case) -> None:
    log = case.filled(count=3)
    for name in ("../x", "a/b", "ä" * 40, ".", "%41"):
        case.put(name, log, 1)
    case.restart()
    assert sorted(case.readers.known) == sorted(["../x", "a/b", "ä" * 40, ".", "%41"])


def test_a_limit_of_readers(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BULK_READERS_MAX", 2)
    log = case.filled(count=3)
    for name in ("a", "b", "a"):
        case.put(name, log, 1)
    with pytest.raises(RefusedError) as caught:
        case.put("c", log, 1)
    assert caught.value.status == 429


async def test_changes_of_one_reader_follow_each_other(tmp_path: Path) -> None:
    """A slow disk, and many who say and unsay the same reader: file and memory end up the same."""
    allowed = asyncio.Event()
    with Rig(tmp_path / "logs") as rig:
        log = rig.log()

        async def slowly(work: Callable[..., None], *arguments: object) -> None:
            await allowed.wait()
            work(*arguments)

        readers = Readers(rig.engine, tmp_path / "readers", slowly, lambda: 0)
        at = [Position(seq, log.log_id.hex()) for seq in range(9)]
        kept = [StoredReader("r", TTL, True, {"t": one}, 1) for one in at]
        work = [asyncio.create_task(readers.put(one)) for one in kept[:4]]
        work.append(asyncio.create_task(readers.delete("r")))
        work += [asyncio.create_task(readers.put(one)) for one in kept[4:]]
        await asyncio.sleep(0)
        assert log.retention.retained_from is None, "not before it is on the disk"
        allowed.set()
        await asyncio.gather(*work)
        assert log.retention.retained_from == 8
        again = Readers(rig.engine, tmp_path / "readers", slowly, lambda: 0)
        again.load()
        assert again.known["r"].stored == readers.known["r"].stored


def test_positions_do_not_pile_up(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests they come in; those of topics that are gone make room."""
    monkeypatch.setattr(limits, "BULK_TOPICS_MAX", 3)
    logs = [case.filled(f"t{n}", count=3) for n in range(4)]
    for log in logs[:3]:
        case.put("r", log, 1)
    with pytest.raises(RefusedError, match="more than 3 names"):
        case.put("r", logs[3], 1)
    assert sorted(case.readers.known["r"].stored.positions) == ["t0", "t1", "t2"]
    case.rig.engine.delete_log("t1")
    case.put("r", logs[3], 1)
    assert sorted(case.readers.known["r"].stored.positions) == ["t0", "t2", "t3"]


async def test_a_reader_that_comes_back_as_it_is_forgotten(tmp_path: Path) -> None:
    """Two threads do the file work: the new file must not go instead of the old one."""
    removing = asyncio.Event()
    now_ns = 0
    with Rig(tmp_path / "logs") as rig:
        log = rig.log()

        async def two_threads(work: Callable[..., None], *arguments: object) -> None:
            if work.__name__ == "_remove":
                removing.set()
                for _ in range(10):  # whoever else is to write has time to
                    await asyncio.sleep(0)
            work(*arguments)

        readers = Readers(rig.engine, tmp_path / "readers", two_threads, lambda: now_ns)
        kept = StoredReader("r", TTL, True, {"t": Position(1, log.log_id.hex())}, 1)
        await readers.put(kept)
        now_ns += TTL * 10**9 + 1
        expiring = asyncio.create_task(readers.expire())
        await removing.wait()
        await readers.put(kept)
        await expiring
        again = Readers(rig.engine, tmp_path / "readers", two_threads, lambda: now_ns)
        again.load()
        assert again.known["r"].stored == kept


async def test_a_request_that_does_not_name_the_hold_leaves_it_as_it_is(tmp_path: Path) -> None:
    """It was read before another one had set the hold."""
    allowed = asyncio.Event()
    with Rig(tmp_path / "logs") as rig:
        log = rig.log()

        async def slowly(work: Callable[..., None], *arguments: object) -> None:
            await allowed.wait()
            work(*arguments)

        readers = Readers(rig.engine, tmp_path / "readers", slowly, lambda: 0)
        at = {"t": Position(1, log.log_id.hex())}
        first = asyncio.create_task(readers.put(StoredReader("r", TTL, True, at, 1)))
        omitted = ["hold", "ttl_s"]
        second = asyncio.create_task(
            readers.put(StoredReader("r", 9, False, at, 1), omitted=omitted)
        )
        await asyncio.sleep(0)
        allowed.set()
        await asyncio.gather(first, second)
        assert log.retention.retained_from == 1
        assert readers.known["r"].stored.ttl_s == TTL


def test_a_renewal_looks_at_what_has_changed_alone(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand topics that a hundred readers read, all would take the loop's time."""
    logs = [case.filled(f"t{number}", count=3) for number in range(4)]
    at = {log.name: Position(1, log.log_id.hex()) for log in logs}
    run(case.readers.put(StoredReader("r", TTL, True, at, 1)))
    looked, hold = list[str](), case.readers.holds.hold

    def noted(log: Any, *more: Any) -> None:
        looked.append(log.name)
        hold(log, *more)

    monkeypatch.setattr(case.readers.holds, "hold", noted)
    run(case.readers.put(StoredReader("r", TTL, True, at, 1)))
    assert looked == []
    case.put("r", logs[2], 2)
    assert looked == ["t2"]
    assert [log.retention.retained_from for log in logs] == [1, 1, 2, 1]
    case.put("r", logs[2], 2, hold=False)
    assert [log.retention.retained_from for log in logs] == [None] * 4


async def test_a_reader_made_anew_while_another_one_expires(tmp_path: Path) -> None:
    removing, goes_on = asyncio.Event(), asyncio.Event()
    now_ns = 0
    with Rig(tmp_path / "logs") as rig:
        log = rig.log()

        async def threads(work: Callable[..., None], *arguments: object) -> None:
            if work.__name__ == "_remove" and not removing.is_set():
                removing.set()
                await goes_on.wait()
            work(*arguments)

        readers = Readers(rig.engine, tmp_path / "readers", threads, lambda: now_ns)
        at = {"t": Position(1, log.log_id.hex())}
        for name in ("a", "b"):
            await readers.put(StoredReader(name, TTL, True, at, 1))
        now_ns += TTL * 10**9 + 1
        expiring = asyncio.create_task(readers.expire())
        await removing.wait()
        await readers.delete("b")
        await readers.put(StoredReader("b", TTL, True, at, 1))
        goes_on.set()
        await expiring
        again = Readers(rig.engine, tmp_path / "readers", threads, lambda: now_ns)
        again.load()
        assert list(again.known) == list(readers.known) == ["b"]
