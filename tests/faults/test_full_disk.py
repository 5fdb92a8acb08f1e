"""A full disk starts, serves, drains and heals."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.clients.http import nsq_channel, request
from support.clients.peer import nsq_peer
from support.disks import FILLER, fill, free_bytes, small_disk
from support.engine import (
    OPEN,
    SECOND,
    SYNC_PATH,
    WRITE,
    Rig,
    drain,
    finish_all,
    make_log,
    numbered,
    readable_bodies,
    segment_files,
)
from support.stan.client import StanClient

from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.files import QuarantinedError
from broker.runtime import vfs

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

FOR_EVER = 1 << 20
BODIES = numbered(60)
SMALL = {"segment_bytes": 1024}
DISK_BYTES = 8 << 20
WAIT_S = 30.0


def full() -> None:
    vfs.fail(WRITE, errno.ENOSPC, times=FOR_EVER)
    vfs.fail(OPEN, errno.ENOSPC, times=FOR_EVER)


def no_more_writes() -> None:
    vfs.fail(WRITE, errno.ENOSPC, times=FOR_EVER)


# --- retention


@pytest.mark.parametrize("disk", [full, no_more_writes])
def test_retention_by_age_makes_room(folder: Path, disk: Callable[[], None]) -> None:
    """What is too old goes, although the file in use is too old as well and none can be made."""
    with Rig(folder, **SMALL) as rig:
        log = rig.log()
        rig.engine.set_settings(log, {"max_age": 4 * SECOND})
        assert rig.publish(log, BODIES) == [1] * len(BODIES)
        before = len(segment_files(folder))
        assert before > 3
        disk()
        assert rig.publish(log, [b"refused"]) != [1]
        for _ in range(8):
            rig.advance(1.0)
        assert len(segment_files(folder)) == 1
        vfs.heal()
        rig.advance(3.0)
        assert rig.publish(log, [b"healed"]) == [1]
        log.open_cursor("c")
        rig.close()
    with Rig(folder, **SMALL) as rig:
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 100)
        assert list(drain(rig, consumer, 3))[-1:] in ([b"healed"], [])
        rig.close()


# --- starts


def test_a_torn_tail_that_cannot_be_copied_stays(folder: Path) -> None:
    make_log(folder, BODIES)
    (file,) = segment_files(folder)
    torn = b"torn" * 100
    file.write_bytes(file.read_bytes() + torn)
    # the place of the copy is taken by something that no file can be written to
    good = file.stat().st_size - len(torn)
    (folder / "t" / f"{file.name}.torn-{good}").symlink_to("/dev/full")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.engine.log.files.free_name", lambda path: path)
        with Rig(folder) as rig:
            assert not rig.engine.quarantined
            assert any("torn tail of 400 bytes stays" in text for text in rig.engine.problems)
            log = rig.engine.log("t")
            consumer = LocalConsumer(log.cursors["c"], 100)
            assert list(drain(rig, consumer, 3)) == BODIES
            assert rig.publish(log, [b"more"]) == [1]
            assert list(drain(rig, consumer, 3)) == [b"more"]
            assert torn in file.read_bytes()
            assert len(segment_files(folder)) == 2
            for seq in range(1, len(BODIES) + 2):
                assert consumer.finish(seq) == 0
            rig.advance(2.0)
            rig.close()
    kept = b"".join(p.read_bytes() for p in (folder / "t").glob("*.quarantined"))
    assert torn in kept


@pytest.mark.parametrize("left", [0, 10, 64])
def test_a_file_without_a_header_gets_it_when_there_is_room(folder: Path, left: int) -> None:
    """Also one whose header is zeros."""
    make_log(folder, BODIES, **SMALL)
    *_, last = segment_files(folder)
    lost = BODIES[int(last.stem) - 1 :]
    last.write_bytes(bytes(left))
    found = [body for body in BODIES if body not in lost]
    no_more_writes()
    with Rig(folder, **SMALL) as rig:
        log = rig.engine.log("t")
        assert rig.publish(log, [b"refused"]) != [1]
        consumer = LocalConsumer(log.cursors["c"], 1000)
        assert list(drain(rig, consumer, 3)) == found
        vfs.heal()
        rig.advance(3.0)
        assert rig.publish(log, [b"healed"]) == [1]
        assert list(drain(rig, consumer, 3)) == [b"healed"]
        consumer.leave()
        rig.close()
    with Rig(folder, **SMALL) as rig:
        assert rig.engine.problems == []
        consumer = LocalConsumer(rig.engine.log("t").cursors["c"], 1000)
        assert sorted(drain(rig, consumer, 3)) == sorted([*found, b"healed"])
        rig.close()


def test_seqs_that_only_cursors_know(folder: Path) -> None:
    """The new segment that keeps them from being used again cannot be made; the log opens."""
    with Rig(folder) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        assert rig.publish(log, BODIES) == [1] * len(BODIES)
        assert finish_all(consumer) == BODIES
        rig.settle()
        rig.close()
    (file,) = segment_files(folder)
    file.write_bytes(file.read_bytes()[: 64 + 64 * 3])
    vfs.fail(OPEN, errno.ENOSPC, after=1, times=FOR_EVER)
    with Rig(folder) as rig:
        log = rig.engine.log("t")
        assert log.next_seq == len(BODIES) + 1
        vfs.heal()
        rig.advance(3.0)
        assert rig.publish(log, [b"new"]) == [1]
        assert log.next_seq == len(BODIES) + 2
        consumer = LocalConsumer(log.cursors["c"], 100)
        assert list(drain(rig, consumer, 3)) == [b"new"]
        rig.close()


# --- a real one


def until(act: Callable[[], object], wanted: object) -> None:
    """Ask again and again, until the answer is the wanted one."""
    deadline = time.monotonic() + WAIT_S
    while (found := act()) != wanted:
        assert time.monotonic() < deadline, found


def publish(server: Server, topic: str, body: bytes = b"x") -> int:
    return request(server.nsq_http, "POST", "/pub", body, topic=topic).status


@pytest.mark.only_ours
def test_it_starts_drains_and_heals(start_broker: StartBroker, tmp_path: Path) -> None:
    body = b"x" * 4000
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        data = disk / "data"
        config: dict[str, dict[str, object]] = {
            "storage": {"segment_size": "1MiB"},
            "stan": {"enabled": True},
        }
        server = start_broker(config, data)
        request(server.nsq_http, "POST", "/topic/create", topic="t")
        request(server.nsq_http, "POST", "/channel/create", topic="t", channel="c")
        with StanClient(server, "me") as client:
            assert client.subscribe("s", durable="d").error == ""
        with nsq_peer(server.nsq) as peer:
            stored = 0
            peer.command("PUB t", body)
            while peer.read_frame().payload == b"OK":
                stored += 1
                peer.command("PUB t", body)
        assert stored > 1000
        server.kill()
        *_, last = sorted((data / "logs" / "t").glob("*.seg"))
        with last.open("ab") as file:
            file.truncate(last.stat().st_size - 100)  # a torn tail, and not of zeros
        fill(disk)
        assert free_bytes(disk) == 0
        server.start()
        for path, names in (
            ("/pub", {"topic": "new"}),
            ("/topic/create", {"topic": "new"}),
            ("/channel/create", {"topic": "t", "channel": "other"}),
        ):
            answer = request(server.nsq_http, "POST", path, b"x", **names)
            said = {"message": "NOT_SAVED: No space left on device"}
            assert (answer.status, answer.json) == (503, said)
        assert "Traceback" not in server.log_since()
        got = set()
        with nsq_peer(server.nsq) as peer:
            peer.command("SUB t c")
            assert peer.read_frame().payload == b"OK"
            peer.command("RDY 2500")
            while len(got) < stored - 1:
                frame = peer.read_frame()
                got.add(frame.message_id)
                peer.command(f"FIN {frame.message_id.decode()}")
            # what was finished made room, and nobody did anything else
            until(lambda: publish(server, "t", body) == 200, True)
        assert nsq_channel(server.nsq_http, "t", "c") is not None
        until(lambda: publish(server, "new"), 200)
        (disk / FILLER).unlink()
        until(lambda: request(server.monitor, "GET", "/healthz").status, 200)
        with StanClient(server, "me") as client:
            assert client.subscribe("s", durable="d").error == ""
        server.close()


@pytest.mark.only_ours
def test_a_clean_stop_then_full(start_broker: StartBroker, tmp_path: Path) -> None:
    """Not even the process id finds room in the lock file, nor the state of NATS Streaming."""
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        server = start_broker({"stan": {"enabled": True}}, disk / "data")
        assert publish(server, "t") == 200
        with StanClient(server, "me") as client:
            assert client.publish("s", b"1") == ""
        server.stop()
        fill(disk)
        server.start()
        topics = request(server.nsq_http, "GET", "/stats", format="json", topic="t").json["topics"]
        assert topics[0]["depth"] == 1
        (disk / FILLER).unlink()
        until(lambda: publish(server, "t"), 200)
        with StanClient(server, "me") as client:
            assert client.publish("s", b"2") == ""
        server.close()


# --- the start


def no_sync_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sync of a folder by Python fails."""
    sync, left = os.fsync, 1

    def failing(fd: int) -> None:
        nonlocal left
        if left and os.path.samestat(os.fstat(fd), folder.stat()):
            left = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(fd)

    monkeypatch.setattr(os, "fsync", failing)


def test_a_start_that_cannot_sync_the_folder_of_all_logs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every log is there all the same, and none is begun anew over the old one."""
    root = folder / "logs"
    make_log(root, BODIES, **SMALL)
    no_sync_of(folder, monkeypatch)
    with Rig(root, sync="always", **SMALL) as rig:
        assert any("synced" in problem for problem in rig.engine.problems)
        assert list(rig.engine.logs) == ["t"]
        assert rig.publish(rig.log(), [b"more"]) == [1]
        assert readable_bodies(rig, rig.log()) == [*BODIES, b"more"]


def test_nothing_is_answered_before_the_folder_of_all_logs_is_synced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_sync_of(folder, monkeypatch)
    with Rig(folder / "logs", sync="always", **SMALL) as rig:
        log = rig.log()
        vfs.fail(SYNC_PATH, errno.EIO, after=3)  # metadata, log, all logs, and what is above
        assert rig.publish(log, [b"refused"]) == [-1]
        rig.advance(3.0)
        assert rig.publish(log, [b"answered"]) == [1]
        assert rig.engine.shared.root_known


def test_a_log_that_was_not_seen_at_the_start_is_not_written_over(folder: Path) -> None:
    make_log(folder / "kept", BODIES, **SMALL)
    with Rig(folder / "logs", sync="always", **SMALL) as rig:
        (folder / "kept/t").rename(folder / "logs/t")
        assert rig.publish(rig.log(), [b"more"]) == [1]
        assert readable_bodies(rig, rig.log()) == [*BODIES, b"more"]
        assert ("warning", "a log was found that was not there at the start") in [
            report[:2] for report in rig.reports
        ]


def test_a_log_that_was_not_seen_and_does_not_open(folder: Path) -> None:
    make_log(folder / "kept", BODIES, **SMALL)
    (folder / "kept/t/meta.json").unlink()
    (folder / "kept/t/meta.json").mkdir()
    with Rig(folder / "logs", sync="always", **SMALL) as rig:
        (folder / "kept/t").rename(folder / "logs/t")
        with pytest.raises(QuarantinedError):
            rig.log()
        assert list(rig.engine.quarantined) == ["t"]
        assert (folder / "logs/t/meta.json").is_dir()
