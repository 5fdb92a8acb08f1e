"""Logs at which nothing goes on: no open file, no mapping, and all as before when they are used."""

from __future__ import annotations

import errno
import os
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from support.clients.nsq import TIMEOUT_S, Wire, body
from support.engine import OPEN, SYNC, Rig, bodies_of
from support.programs import nsqd

from broker.engine.cursor.local import LocalConsumer
from broker.engine.limits import FILES_WAIT, OPEN_FILES_SHARE
from broker.engine.log.publish import append, outcome
from broker.net.limits import OPEN_FILES_KEPT_MIN
from broker.runtime import vfs

OPEN_FILES = 128  # of a process that has few


def open_files(root: Path) -> list[Path]:
    """What this process holds open below a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            target = link.readlink()
            if target.is_relative_to(root):
                found.append(target)
    return found


def mappings(root: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(root))


@pytest.mark.parametrize("sync", ["none", "always", 1.0])
def test_an_idle_log_holds_nothing_open(tmp_path: Path, sync: str | float) -> None:
    with Rig(tmp_path, sync=sync) as rig:
        log = rig.log()
        consumer = LocalConsumer(log.open_cursor("c"), 100)
        rig.publish(log, [b"first"])
        assert bodies_of(consumer) == [b"first"]
        assert consumer.finish(1) == 0
        rig.settle()
        assert open_files(tmp_path)
        for _ in range(5):
            rig.advance(1)
        assert open_files(tmp_path) == []
        assert mappings(tmp_path) == 0
        assert rig.publish(log, [b"second"]) == [1]
        assert bodies_of(consumer) == [b"second"]
        rig.close()
    with Rig(tmp_path, sync=sync) as rig:
        assert open_files(tmp_path) == [], "a log that was found on the disk rests too"
        log = rig.log()
        consumer = LocalConsumer(log.cursors["c"], 100)
        assert rig.publish(log, [b"third"]) == [1]
        assert bodies_of(consumer) == [b"second", b"third"]


def test_a_log_whose_records_nobody_has_read_rests_and_goes_on(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        rig.publish(log, [b"one", b"two"])
        for _ in range(5):
            rig.advance(1)
        assert open_files(tmp_path) == []
        consumer = LocalConsumer(log.open_cursor("c"), 1)
        rig.settle()
        assert bodies_of(consumer) == [b"one"]
        for _ in range(5):
            rig.advance(1)
        assert consumer.finish(1) == 0
        rig.settle()
        assert bodies_of(consumer) == [b"two"]


def test_when_no_more_files_may_be_open_idle_logs_give_theirs(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        idle = rig.log("idle")
        rig.publish(idle, [b"x"])
        assert len(open_files(tmp_path)) == 1
        vfs.fail(OPEN, errno.EMFILE)
        log = rig.log("busy")
        ticket = append(log, b"y")
        rig.settle()
        assert outcome(log, ticket) == 1
        assert [path.parent.name for path in open_files(tmp_path)] == ["busy"]
        assert rig.publish(idle, [b"z"]) == [1]


def test_when_all_files_are_busy_an_append_is_refused(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        log = rig.log()
        vfs.fail(OPEN, errno.EMFILE)
        assert append(log, b"x") == 0
        rig.advance(1)
        assert rig.publish(log, [b"x"]) == [1]


def test_a_log_keeps_its_file_for_a_sync_that_takes_long_and_closes_it_then(
    tmp_path: Path,
) -> None:
    with Rig(tmp_path, sync=1.0) as rig:
        log = rig.log()
        assert rig.publish(log, [b"x"]) == [1]
        vfs.hold(SYNC)
        for _ in range(5):
            rig.loop.advance(1_000_000_000)
            rig.loop.run()
        rig.until(lambda: vfs.held(SYNC) == 1)
        assert len(open_files(tmp_path)) == 1
        vfs.release(SYNC)
        rig.settle()
        for _ in range(3):
            rig.advance(1)
        assert open_files(tmp_path) == []


def test_batches_are_not_synced_for_their_files_when_connections_hold_the_others(
    tmp_path: Path,
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [int(path.name) for path in Path("/proc/self/fd").iterdir()]  # by earlier tests too
    most = max(held) + OPEN_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    taken = []
    try:
        with Rig(tmp_path, sync=3600.0) as rig:
            logs = [rig.log(f"t{n}") for n in range(3)]
            while not taken or taken[-1] < most * OPEN_FILES_SHARE:
                taken.append(os.dup(0))
            for _ in range(10):
                for log in logs:
                    assert rig.publish(log, [b"x"]) == [1]
                rig.advance(0.1)
            assert rig.engine.shared.syncs == 0
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_publishers_to_more_topics_than_files_may_be_open_wait_for_syncs(tmp_path: Path) -> None:
    topics = 3 * OPEN_FILES
    program = nsqd(tmp_path, original=False)
    program.command = ["prlimit", f"--nofile={OPEN_FILES}:{OPEN_FILES}", *program.command]
    with program, Wire(program.tcp) as client:
        for n in range(topics):
            client.send(body(b"PUB topic%d" % n, b"x"))
        for n in range(topics):
            assert client.frame() == (0, b"OK"), n
        assert len(list(tmp_path.rglob("*.seg"))) == topics


def test_connections_that_come_at_once_leave_files_to_the_logs(tmp_path: Path) -> None:
    """The loop accepts many before it reports the first of them."""
    program = nsqd(tmp_path, original=False)
    program.command = ["prlimit", f"--nofile={OPEN_FILES}:{OPEN_FILES}", *program.command]
    with program, Wire(program.tcp) as client, ExitStack() as stack:
        crowd = [stack.enter_context(socket.socket()) for _ in range(8 * OPEN_FILES)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(tuple(program.tcp))
        for one in crowd:
            one.settimeout(TIMEOUT_S)
            with suppress(ConnectionError):
                one.sendall(b"  V2" + body(b"IDENTIFY", b"{}"))
                one.recv(64)  # the answer, or the end
        for n in range(OPEN_FILES_KEPT_MIN // 4):
            client.send(body(b"PUB topic%d" % n, b"x"))
            assert client.frame() == (0, b"OK"), n


class Publisher:
    """A connection that a log pauses and resumes."""

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


def test_publishers_wait_for_files_no_longer_than_files_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1, 1))  # any file is the last
    publisher = Publisher()
    with Rig(tmp_path, sync=1.0) as rig:
        first, second, third = (rig.log(name) for name in ("first", "second", "third"))
        assert rig.publish(first, [b"x"]) == [1]
        rig.advance(0.01)  # no file could be closed for it; they are searched again after 5 ms
        vfs.hold(SYNC)
        assert append(second, b"x")
        rig.loop.run()
        rig.until(lambda: vfs.held(SYNC) >= 1)
        second.stall(publisher)
        assert publisher.paused
        for waited_s in range(FILES_WAIT // 10**9 + 2):
            assert publisher.paused or waited_s >= FILES_WAIT // 10**9
            rig.loop.advance(10**9)
            rig.loop.run()
        assert not publisher.paused
        assert append(third, b"x")
        rig.loop.run()
        vfs.release(SYNC)
        rig.settle()
