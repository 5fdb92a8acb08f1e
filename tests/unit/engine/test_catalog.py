"""The catalog of all logs: believed where nothing was touched since the stop, and only there."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine import Rig, bodies_of, drain, finish_all, flip_bit, numbered, segment_files

from broker.engine import catalog, engine
from broker.engine.cursor.local import LocalConsumer

BODIES = numbered(5)


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of logs that were opened by looking at them; any number of logs has a catalog."""
    found: list[str] = []
    plain = engine.open_log

    def noted(shared: Any, folder: str, *rest: Any) -> Any:
        found.append(Path(folder).name)
        return plain(shared, folder, *rest)

    monkeypatch.setattr(engine, "open_log", noted)
    monkeypatch.setattr(catalog, "LOGS_MIN", 1)
    return found


def fill(root: Path, names: str = "abc") -> None:
    """Logs with five records, and a cursor `c` that has finished the first two."""
    with Rig(root) as rig:
        for name in names:
            log = rig.log(name)
            consumer = LocalConsumer(log.open_cursor("c"), 2)
            rig.publish(log, BODIES)
            finish_all(consumer)
            consumer.leave()
            rig.settle()
        rig.close()
    assert (root / catalog.FILE).exists()


def state(rig: Rig) -> dict[str, Any]:
    """All that is known of the logs without reading them."""
    return {
        log.name: (
            log.log_id,
            log.created_ns,
            log.paused,
            log.settings,
            log.protocol,
            log.next_seq,
            log.visible,
            log.frontier,
            log.first_seq,
            log.depth,
            [(s.first_seq, s.next_seq, s.size, s.planned, s.active) for s in log.segments],
            {
                name: (c.depth, c.paused, c.next_seq, c.acks.floor, c.acks.count, c.deferred_count)
                for name, c in log.cursors.items()
            },
        )
        for log in rig.engine.logs.values()
    }


def rest_of(rig: Rig) -> dict[str, list[bytes]]:
    """What each cursor still gives."""
    return {
        f"{log.name}/{name}": list(drain(rig, LocalConsumer(cursor, 1 << 20), 5))
        for log in rig.engine.logs.values()
        for name, cursor in log.cursors.items()
    }


def test_no_log_is_looked_at_after_a_clean_stop(tmp_path: Path, looked_at: list[str]) -> None:
    fill(tmp_path)
    with Rig(tmp_path) as rig:
        assert looked_at == []
        assert not (tmp_path / catalog.FILE).exists()  # before anything is written
        log = rig.engine.log("a")
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        assert bodies_of(consumer) == []  # what is there is verified first, without the loop
        assert drain(rig, consumer) == BODIES[2:]
        assert rig.publish(log, [b"more"]) == [1]
        assert bodies_of(consumer) == [b"more"]
        rig.close()
    with Rig(tmp_path) as rig:
        assert looked_at == []
        assert rig.engine.problems == []
        assert rig.engine.log("a").next_seq == 7


def test_new_records_need_no_loading_where_the_old_ones_read(tmp_path: Path) -> None:
    fill(tmp_path)
    with Rig(tmp_path) as rig:
        log = rig.engine.log("a")
        rig.publish(log, [b"more"])
        rig.settle()
        loads = rig.engine.shared.loader.submitted
        assert drain(rig, LocalConsumer(log.open_cursor("c"), 100)) == [*BODIES[2:], b"more"]
        assert rig.engine.shared.loader.submitted == loads


@pytest.mark.parametrize("seed", range(12))
def test_it_says_what_the_files_say(tmp_path: Path, seed: int, looked_at: list[str]) -> None:
    """Whatever has happened to the logs: a start with it and one without it find the same."""
    rng = random.Random(seed)
    root = tmp_path / "logs"
    for _ in range(3):
        with Rig(root, segment_bytes=2048) as rig:
            live(rig, rng)
            rig.close()
    shutil.copytree(root, tmp_path / "copy", ignore=shutil.ignore_patterns(".deleted*"))
    with Rig(root, segment_bytes=2048) as rig:
        assert len(looked_at) < len(rig.engine.logs)
        known, known_rest = state(rig), rest_of(rig)
    looked_at.clear()
    with Rig(tmp_path / "copy", segment_bytes=2048) as rig:
        assert sorted(looked_at) == sorted(rig.engine.logs)  # a copy is not believed
        assert state(rig) == known
        assert rest_of(rig) == known_rest


def live(rig: Rig, rng: random.Random) -> None:
    """Some of all that can happen to logs."""
    for name in "abcdef":
        log = rig.log(name)
        cursors = [log.open_cursor(f"c{n}") for n in range(rng.randrange(3))]
        rig.publish(log, numbered(rng.randrange(30), size=rng.randrange(8, 90)))
        for cursor in cursors:
            consumer = LocalConsumer(cursor, rng.randrange(1, 40))
            rig.settle()
            for seq, *_ in list(consumer.records):
                if rng.random() < 0.7:
                    consumer.finish(seq)
                elif rng.random() < 0.5:
                    consumer.requeue(seq, rng.choice([0.0, 60.0]))
            rig.settle()
            consumer.leave()
        if rng.random() < 0.3:
            rig.engine.set_settings(log, {"max_msgs": 1000})
        if rng.random() < 0.2:
            log.pause() if not log.paused else log.unpause()
        if cursors and rng.random() < 0.2:
            cursors[0].pause()
        if cursors and rng.random() < 0.1:
            log.delete_cursor(cursors[0].name)
        rig.settle()
    if rng.random() < 0.5:
        rig.engine.delete_log(rng.choice("abcdef"))


# --- what must not be believed


def test_it_is_gone_when_the_process_is_killed(tmp_path: Path, looked_at: list[str]) -> None:
    root = tmp_path / "logs"
    fill(root)
    with Rig(root) as rig:
        rig.publish(rig.engine.log("a"), [b"more"])
        rig.abandon()
    with Rig(root) as rig:
        assert looked_at == ["a", "b", "c"]
        assert drain(rig, LocalConsumer(rig.engine.log("a").open_cursor("c"), 100)) == [
            *BODIES[2:],
            b"more",
        ]


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 50)


def overwrite(path: Path) -> None:
    """In place, of the same length, and with its old time."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size - 1)
        last = file.read(1)
        file.seek(before.st_size - 1)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    new = path.with_name("new")
    shutil.copy2(path, new)
    new.replace(path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("change", [append, overwrite, replace, cut, Path.unlink])
@pytest.mark.parametrize("which", ["*.seg", "meta.json", "cursors/*.cur"])
def test_a_log_with_a_file_that_was_touched(
    tmp_path: Path, looked_at: list[str], which: str, change: Callable[[Path], None]
) -> None:
    fill(tmp_path)
    (file,) = (tmp_path / "b").glob(which)
    change(file)
    with Rig(tmp_path):
        assert looked_at == ["b"]


def test_files_that_came(tmp_path: Path, looked_at: list[str]) -> None:
    fill(tmp_path)
    shutil.copy2(segment_files(tmp_path, "a")[0], tmp_path / "a" / f"{6:020d}.seg")
    shutil.copy2(tmp_path / "b/cursors/c.cur", tmp_path / "b/cursors/d.cur")
    with Rig(tmp_path) as rig:
        assert looked_at == ["a", "b"]
        assert sorted(rig.engine.log("b").cursors) == ["c", "d"]


def test_folders_that_came_went_or_changed_places(tmp_path: Path, looked_at: list[str]) -> None:
    fill(tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "d")
    (tmp_path / "a").rename(tmp_path / "x")
    (tmp_path / "b").rename(tmp_path / "a")
    (tmp_path / "x").rename(tmp_path / "b")
    shutil.rmtree(tmp_path / "c")
    with Rig(tmp_path):
        assert sorted(looked_at) == ["a", "b", "d"]


def test_torn_at_every_byte(tmp_path: Path) -> None:
    fill(tmp_path, "a")
    path = tmp_path / catalog.FILE
    data, number = path.read_bytes(), path.stat().st_ino
    assert len(catalog.entries_in(data, number)) == 1
    for size in range(len(data)):
        assert catalog.entries_in(data[:size], number) == []
        assert catalog.entries_in(data[:size] + bytes(len(data) - size), number) == []
    for at in range(len(data)):
        for bit in (0, 7):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            assert catalog.entries_in(bytes(damaged), number) == []


def test_of_another_version(tmp_path: Path, looked_at: list[str]) -> None:
    fill(tmp_path)
    path = tmp_path / catalog.FILE
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data.replace(b"TWINCATALOG 1 ", b"TWINCATALOG 2 ", 1))
    with Rig(tmp_path) as rig:
        assert looked_at == ["a", "b", "c"]
        assert rig.engine.problems == []


def test_copied_beside_the_logs(tmp_path: Path, looked_at: list[str]) -> None:
    """As a tool does that restores a backup file by file."""
    fill(tmp_path)
    replace(tmp_path / catalog.FILE)
    with Rig(tmp_path):
        assert looked_at == ["a", "b", "c"]


def test_after_a_restart_of_the_machine(
    tmp_path: Path, looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    boot = tmp_path.with_name("boot")
    boot.write_text("another\n")
    monkeypatch.setattr(catalog, "BOOT_ID", str(boot))
    with Rig(tmp_path):
        assert looked_at == ["a", "b", "c"]


def test_one_that_cannot_be_removed(
    tmp_path: Path, looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)

    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "unlink", refused)
    with Rig(tmp_path) as rig:
        assert looked_at == ["a", "b", "c"]
        assert [problem for problem in rig.engine.problems if "all logs" in problem]


# --- what it does not speak of


def test_logs_that_are_looked_at_each_time(tmp_path: Path, looked_at: list[str]) -> None:
    """One with a long last file, one of which there is something to tell."""
    fill(tmp_path)
    with Rig(tmp_path) as rig:
        rig.publish(rig.engine.log("a"), [b"x" * 70_000])
        rig.close()
    (journal,) = (tmp_path / "b" / "cursors").iterdir()
    append(journal)
    for _ in range(2):
        looked_at.clear()
        with Rig(tmp_path) as rig:
            assert looked_at == ["a", "b"]
            assert (
                [p for p in rig.engine.problems if str(journal) in p] == rig.engine.problems != []
            )
            rig.close()


def test_damage_that_times_do_not_show(
    tmp_path: Path, looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of a log that was not looked at are verified when they are read."""
    plain = catalog.save

    def after_damage(*args: Any) -> None:
        flip_bit(segment_files(tmp_path, "a")[0], 64 + 3 * 64 + 50)  # the fourth record
        plain(*args)

    monkeypatch.setattr(catalog, "save", after_damage)
    fill(tmp_path)
    monkeypatch.undo()
    with Rig(tmp_path) as rig:
        log = rig.engine.log("a")
        rig.publish(log, [b"more"])
        found = drain(rig, LocalConsumer(log.open_cursor("c"), 100))
        assert found == [BODIES[2], BODIES[4], b"more"]
        assert rig.engine.shared.quarantined_ranges == 1
    assert looked_at == []


def test_none_is_written_when_a_disk_has_failed(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.publish(rig.log(), BODIES)
        rig.engine.shared.sync_errors += 1
        rig.close()
    assert not (tmp_path / catalog.FILE).exists()


def test_none_is_written_for_a_few_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "LOGS_MIN", 4)
    with Rig(tmp_path) as rig:
        for name in "abc":
            rig.publish(rig.log(name), BODIES)
        rig.close()
    assert not (tmp_path / catalog.FILE).exists()
