"""Limits of count, bytes and age that hold for single records."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.engine import (
    OPEN,
    SECOND,
    Rig,
    bodies_of,
    flip_bit,
    limit,
    numbered,
    readable_bodies,
    segment_files,
)
from support.native.routing import Subscriber

from broker.engine.cursor.local import LocalConsumer
from broker.routing.local import publish as publish_live
from broker.runtime import vfs

SMALL = {"segment_bytes": 1024, "load_bytes": 256}
STAN = "x"


def make(rig: Rig, **more: Any) -> Any:
    return rig.engine.open_log("t", protocol=STAN, retention="limits", **more)


@pytest.fixture(params=["files", "memory"])
def rig(request: pytest.FixtureRequest, memory_path: Path) -> Any:
    with Rig(memory_path / "data" if request.param == "files" else None, **SMALL) as made:
        yield made


@pytest.mark.parametrize("count", [5, 400])
def test_count(rig: Rig, count: int) -> None:
    log = make(rig)
    limit(log, msgs_max=10)
    bodies = numbered(count)
    rig.publish(log, bodies)
    assert readable_bodies(rig, log) == bodies[-10:]
    assert log.first_seq == max(1, count - 9)
    assert log.visible == count + 1
    assert not rig.reports


def test_bytes(rig: Rig) -> None:
    log = make(rig)
    limiter = limit(log, bytes_max=100)
    rig.publish(log, [b"x" * 30] * 50)
    assert limiter.bytes == 90
    assert len(readable_bodies(rig, log)) == 3
    rig.publish(log, [b"y" * 40])
    assert [body[:1] for body in readable_bodies(rig, log)] == [b"x", b"x", b"y"]
    assert limiter.bytes == 100


def test_the_newest_stays_whatever_its_size(rig: Rig) -> None:
    log = make(rig)
    limiter = limit(log, bytes_max=100)
    rig.publish(log, [b"small", b"x" * 3000])
    assert readable_bodies(rig, log) == [b"x" * 3000]
    rig.publish(log, [b"small"])
    assert readable_bodies(rig, log) == [b"small"]
    assert limiter.bytes == 5


def test_age(rig: Rig) -> None:
    log = make(rig)
    limit(log, age_max_ns=10 * SECOND)
    rig.publish(log, [b"1", b"2"])
    rig.advance(6)
    rig.publish(log, [b"3"])
    rig.advance(3.999)
    assert readable_bodies(rig, log) == [b"1", b"2", b"3"]
    rig.advance(0.002)
    assert readable_bodies(rig, log) == [b"3"]
    rig.advance(10)
    assert readable_bodies(rig, log) == []
    assert log.first_seq == log.visible == 4
    rig.publish(log, [b"4"])
    assert readable_bodies(rig, log) == [b"4"]


def test_files_go_with_the_records(memory_path: Path) -> None:
    with Rig(memory_path / "data", **SMALL) as rig:
        log = make(rig)
        limit(log, msgs_max=20)
        rig.publish(log, numbered(1000))
        rig.advance(2)
        assert log.first_seq == 981
        assert int(segment_files(memory_path / "data")[1].stem) > 981
        assert len(segment_files(memory_path / "data")) <= 3


def test_readers_behind_pass_over_silently(rig: Rig) -> None:
    log = make(rig)
    limit(log, msgs_max=10)
    consumer = LocalConsumer(log.open_cursor("c", start=1), 3)
    consumer.redeliver_first()
    rig.publish(log, numbered(5))
    assert [record[0] for record in consumer.records] == [1, 2, 3]
    rig.publish(log, numbered(95))
    consumer.set_credit(1 << 30)
    rig.settle()
    assert [record[0] for record in consumer.records[3:]] == list(range(91, 101))
    assert consumer.cursor.depth == 0
    assert not rig.reports


@pytest.mark.parametrize("restart", [False, True])
def test_what_another_cursor_has_not_acked_stays(tmp_path: Path, restart: bool) -> None:
    """A cursor of another protocol than the log's; the limits hold when it is done."""
    bodies = numbered(50)
    with ExitStack() as open_ones:
        rig = open_ones.enter_context(Rig(tmp_path / "logs", **SMALL))
        log = make(rig)
        limit(log, msgs_max=10)
        log.open_cursor("c")
        rig.publish(log, bodies)
        if restart:
            rig.close()
            rig = open_ones.enter_context(Rig(tmp_path / "logs", **SMALL))
            log = rig.engine.logs["t"]
            limit(log, msgs_max=10)
        consumer = LocalConsumer(log.cursors["c"], 1 << 30)
        rig.settle()
        assert bodies_of(consumer) == bodies
        for seq in range(1, 51):
            assert consumer.finish(seq) == 0
        rig.advance(2)
        assert log.first_seq == 41


def test_what_is_gone_is_not_given_again(rig: Rig) -> None:
    log = rig.engine.open_log("t")
    limit(log, msgs_max=2)
    cursor = log.open_cursor("c", start=1)
    consumer = LocalConsumer(cursor, 10, ack_wait=5)
    rig.publish(log, [b"1", b"2"])
    assert bodies_of(consumer) == [b"1", b"2"]
    rig.advance(1)
    rig.publish(log, [b"3"])
    rig.advance(4)
    assert bodies_of(consumer) == [b"3", b"2"]
    assert consumer.finish(2) == consumer.finish(3) == 0
    assert cursor.acks.floor == 4
    assert cursor.inflight.size == 0
    assert not rig.reports


def test_acked_or_not_it_is_kept(rig: Rig) -> None:
    """The limits say what goes; that everybody has read it does not."""
    log = make(rig)
    limit(log, msgs_max=300)
    consumer = LocalConsumer(log.open_cursor("c"), 1 << 30)
    bodies = numbered(200)
    rig.publish(log, bodies)
    for seq, *_ in consumer.records:
        assert consumer.finish(seq) == 0
    rig.advance(5)
    assert readable_bodies(rig, log) == bodies


def test_other_limits_hold_at_once(rig: Rig) -> None:
    log = make(rig)
    limiter = limit(log)
    bodies = numbered(100)
    rig.publish(log, bodies)
    assert readable_bodies(rig, log) == bodies
    limiter.set_limits(7, 0, 0)
    assert readable_bodies(rig, log) == bodies[-7:]
    limiter.set_limits(50, 0, 0)
    rig.publish(log, bodies[:3])
    assert readable_bodies(rig, log) == bodies[-7:] + bodies[:3]
    limiter.set_limits(0, 2 * 24, 0)
    assert readable_bodies(rig, log) == bodies[1:3]
    limiter.set_limits(0, 0, SECOND)
    rig.advance(2)
    assert readable_bodies(rig, log) == []
    limiter.close()
    rig.publish(log, bodies)
    rig.advance(100)
    assert readable_bodies(rig, log) == bodies


@pytest.mark.parametrize("close", [True, False])
def test_after_a_restart(memory_path: Path, close: bool) -> None:
    bodies = numbered(500, size=20)
    with Rig(memory_path / "0", **SMALL) as rig:
        log = make(rig)
        limit(log, msgs_max=60)
        rig.publish(log, bodies)
        if close:
            rig.close()
            (memory_path / "0").rename(memory_path / "1")
        else:
            rig.crash(memory_path / "1")
    with Rig(memory_path / "1", **SMALL) as rig:
        log = rig.engine.log("t")
        assert log.protocol == STAN
        limiter = limit(log, msgs_max=60)
        assert (log.first_seq, log.visible) == (441, 501)
        assert readable_bodies(rig, log) == bodies[-60:]
        assert limiter.bytes == 60 * 20
        rig.publish(log, [b"more"])
        assert readable_bodies(rig, log) == [*bodies[-59:], b"more"]
        assert not rig.reports


def test_an_age_is_over_while_nobody_is_there(memory_path: Path) -> None:
    with Rig(memory_path / "0", **SMALL) as rig:
        rig.publish(make(rig), numbered(200))
        rig.advance(100)
        rig.publish(make(rig), [b"young"])
        rig.crash(memory_path / "1")
        clock = (rig.loop.now_ns + 50 * SECOND, 0)
    with Rig(memory_path / "1", clock=clock, **SMALL) as rig:
        log = rig.engine.log("t")
        limit(log, age_max_ns=100 * SECOND)
        assert readable_bodies(rig, log) == [b"young"]
        rig.advance(51)
        assert readable_bodies(rig, log) == []
        assert log.visible == 202


def test_damage_is_passed_over_and_kept(memory_path: Path) -> None:
    """What does not read is nobody's oldest record, and its file is not deleted."""
    with Rig(memory_path / "0", **SMALL) as rig:
        rig.publish(make(rig), numbered(100))
        rig.close()
    first = segment_files(memory_path / "0")[0]
    flip_bit(first, first.stat().st_size // 2)
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        limiter = limit(log, msgs_max=99)
        for left in range(99, 0, -1):
            limiter.set_limits(left, 0, 0)
            assert log.visible - log.first_seq <= left
        rig.advance(2)
        assert readable_bodies(rig, log) == numbered(100)[-1:]
    assert list((memory_path / "0" / "t").glob("*.quarantined"))


def test_the_protocol_is_remembered(memory_path: Path) -> None:
    with Rig(memory_path / "0") as rig:
        make(rig)
        rig.log("plain")
        rig.crash(memory_path / "1")
    with Rig(memory_path / "1") as rig:
        assert rig.engine.log("t").protocol == STAN
        assert rig.engine.log("plain").protocol is None
        assert rig.engine.open_log("plain", protocol="y").protocol == "y"
        assert rig.engine.open_log("t").protocol == STAN
        rig.crash(memory_path / "2")
    with Rig(memory_path / "2") as rig:
        assert rig.engine.log("plain").protocol == "y"


def test_where_a_cursor_begins(rig: Rig) -> None:
    """The first one of everybody's own with all that is kept, others with what comes."""
    log = make(rig)
    rig.publish(log, [b"1", b"2"])
    own = LocalConsumer(log.open_cursor("own", start=2), 9)
    own.redeliver_first()
    rig.settle()
    assert bodies_of(own) == [b"2"]
    first = LocalConsumer(log.open_cursor("first"), 9)
    second = LocalConsumer(log.open_cursor("second"), 9)
    rig.publish(log, [b"3"])
    assert bodies_of(first) == [b"1", b"2", b"3"]
    assert bodies_of(second) == [b"3"]


@pytest.mark.parametrize("limited", [True, False])
def test_limits_apply_to_a_cursor_as_its_policy_says(tmp_path: Path, limited: bool) -> None:
    """Whichever record it gives first: what it has not acked goes, or stays."""
    with Rig(tmp_path, **SMALL) as rig:
        log = make(rig)
        limit(log, msgs_max=10)
        consumer = LocalConsumer(log.open_cursor("c", start=1), 3)
        consumer.redeliver_first(limited=limited)
        rig.publish(log, numbered(100))
        assert log.first_seq == (91 if limited else 1)
        assert log.backlog_seq == (91 if limited else log.frontier)


def test_the_start_of_a_cursor_is_remembered(memory_path: Path) -> None:
    with Rig(memory_path / "0") as rig:
        log = make(rig)
        rig.publish(log, numbered(5))
        log.open_cursor("c", start=4)
        rig.settle()
        rig.crash(memory_path / "1")
    with Rig(memory_path / "1") as rig:
        consumer = LocalConsumer(rig.engine.log("t").open_cursor("c", start=1), 9)
        rig.settle()
        assert [record[0] for record in consumer.records] == [4, 5]


@pytest.mark.parametrize(("to_live", "from_live"), [(True, False), (False, True)])
def test_connected_as_its_owner_says(rig: Rig, to_live: bool, from_live: bool) -> None:
    """Whatever the engine says, and again otherwise."""
    subscriber = Subscriber(rig.router)
    subscriber.subscribe(b"1", b"t")
    log = make(rig)
    for stored, heard in ((from_live, to_live), (not from_live, not to_live)):
        log.connect(heard, stored)
        before = log.visible
        publish_live(rig.router, b"t", b"live")
        rig.settle()
        assert log.visible == before + stored
        assert [m[3] for m in subscriber.received] == [b"live"]
        rig.publish(log, [b"stored"])
        assert [m[3] for m in subscriber.received[1:]] == [b"stored"] * heard
        subscriber.received.clear()


@pytest.mark.parametrize("limits", [{"msgs_max": 3}, {"bytes_max": 80}, {"age_max_ns": SECOND}])
def test_what_is_gone_stays_gone_under_wider_limits(
    memory_path: Path, limits: dict[str, int]
) -> None:
    """Its bytes are in the file yet; and a log that lost its end begins where it ends."""
    root = memory_path / "data"
    with Rig(root) as rig:
        log = make(rig)
        limit(log, **limits)
        rig.publish(log, numbered(10))
        rig.advance(2)
        first = log.first_seq
        assert first > 7
        rig.close()
    for _ in range(2):  # also when nobody limits it meanwhile
        with Rig(root) as rig:
            log = rig.engine.log("t")
            assert log.first_seq == first
            rig.close()
    with Rig(root) as rig:
        log = rig.engine.log("t")
        limit(log)
        assert readable_bodies(rig, log) == numbered(10)[first - 1 :]
        rig.close()
    (file,) = segment_files(root)
    file.write_bytes(file.read_bytes()[:200])
    with Rig(root) as rig:
        log = rig.engine.log("t")
        limit(log)
        assert log.first_seq == log.visible < first
        assert rig.publish(log, [b"more"]) == [1]
        assert readable_bodies(rig, log) == [b"more"]


@pytest.mark.parametrize("place", [0, 2, -1])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65])
@pytest.mark.parametrize(
    "limits", [{"bytes_max": 1 << 20}, {"msgs_max": 101}, {"age_max_ns": 1000 * SECOND}]
)
def test_a_file_of_a_hostile_size_takes_nothing_with_it(
    memory_path: Path, size: int, place: int, limits: dict[str, int]
) -> None:
    """What a power cut leaves of one file: the records of all others stay, and are found."""
    root = memory_path / "data"
    with Rig(root, **SMALL) as rig:
        rig.publish(make(rig), numbered(100))
        rig.close()
    files = segment_files(root)
    firsts = [*(int(file.stem) for file in files), 101]
    place %= len(files)
    lost = range(firsts[place], firsts[place + 1])
    with files[place].open("r+b") as file:
        file.truncate(size)
    with Rig(root, **SMALL) as rig:
        log = rig.engine.log("t")
        limit(log, **limits)
        healthy = [body for n, body in enumerate(numbered(100), 1) if n not in lost]
        assert readable_bodies(rig, log) == healthy
        assert rig.publish(log, [b"more"]) == [1]
        rig.advance(5)
        assert readable_bodies(rig, log) == [*healthy, b"more"]
        log.retention.limiter.set_limits(5, 0, 0)
        rig.settle()
        assert log.visible - log.first_seq <= 5
        assert readable_bodies(rig, log)[-1] == b"more"


def test_two_files_that_claim_the_same_first_seq(memory_path: Path) -> None:
    root = memory_path / "data"
    with Rig(root, **SMALL) as rig:
        rig.publish(make(rig), numbered(100))
        rig.close()
    second = segment_files(root)[1]
    (root / "t" / f"{int(second.stem)}.seg").write_bytes(second.read_bytes())
    with Rig(root, **SMALL) as rig:
        log = rig.engine.log("t")
        limit(log, bytes_max=1 << 20)
        assert readable_bodies(rig, log) == numbered(100)


def test_a_file_named_after_seq_0(memory_path: Path) -> None:
    """No record has that seq; what does not read in the file behind it is passed over alone."""
    root = memory_path / "data"
    with Rig(root, **SMALL) as rig:
        rig.publish(make(rig), numbered(5))
        rig.close()
    (file,) = segment_files(root)
    file = file.rename(file.with_name(f"{0:020d}.seg"))
    flip_bit(file, 64 + 20)
    with Rig(root, **SMALL) as rig:
        log = rig.engine.log("t")
        limit(log, bytes_max=1 << 20)
        assert readable_bodies(rig, log) == numbered(5)[1:]


@pytest.mark.parametrize("hurt", [2, 3], ids=["the last but one", "the last of its file"])
def test_limits_go_on_behind_what_does_not_read(memory_path: Path, hurt: int) -> None:
    """The rest of the file in which the oldest record stands does not read."""
    more = {"segment_bytes": 512, "load_bytes": 256}
    with Rig(memory_path / "0", **more) as rig:
        log = make(rig)
        limiter = limit(log)
        for _ in range(3):
            rig.publish(log, [b"." * 100] * 3)
        limiter.set_limits(7 if hurt == 3 else 8, 0, 0)
        rig.settle()
        assert log.first_seq == hurt
        rig.crash(memory_path / "1")
    for seq in range(hurt, 4):
        flip_bit(segment_files(memory_path / "1")[0], 64 + (seq - 1) * 144 + 66)
    with Rig(memory_path / "1", **more) as rig:
        log = rig.engine.log("t")
        limiter = limit(log, msgs_max=7, age_max_ns=SECOND)
        rig.advance(2)
        assert log.first_seq == log.visible == 10
        rig.publish(log, numbered(50))
        assert readable_bodies(rig, log) == numbered(50)[-7:]
        limiter.set_limits(1, 0, 0)
        assert readable_bodies(rig, log) == numbered(50)[-1:]


def test_limits_go_on_behind_records_that_were_lost(memory_path: Path) -> None:
    """A journal that is newer than the last records leaves a gap at the end of a file."""
    with Rig(memory_path / "0") as rig:
        log = make(rig)
        consumer = LocalConsumer(log.open_cursor("own", start=1), 100)
        rig.publish(log, numbered(10))
        for seq in range(1, 11):
            assert consumer.settle(seq)
        rig.settle()
        rig.crash(memory_path / "1")
    with segment_files(memory_path / "1")[0].open("r+b") as file:
        file.truncate(64 + 7 * 64)
    with Rig(memory_path / "1") as rig:
        log = rig.engine.log("t")
        LocalConsumer(log.cursors["own"], 0).redeliver_first()
        limit(log, msgs_max=3, age_max_ns=2 * SECOND)
        rig.publish(log, numbered(50))
        assert readable_bodies(rig, log) == numbered(50)[-3:]
        rig.advance(3)
        assert log.first_seq == log.visible


def test_a_damaged_time_does_not_stop_the_limit_of_age(memory_path: Path) -> None:
    with Rig(memory_path / "0", **SMALL) as rig:
        rig.publish(make(rig), numbered(30))
        rig.close()
    # The time of the second record is centuries away. The first is verified to be found, and those
    # behind it when they are waited for.
    flip_bit(segment_files(memory_path / "0")[0], 64 + (40 + 24) + 23, 6)
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        limit(log, age_max_ns=10 * SECOND)
        rig.advance(11)
        assert readable_bodies(rig, log) == []
        assert log.first_seq == log.visible


def test_limits_hold_again_once_a_file_can_be_opened(memory_path: Path) -> None:
    """Nothing is published meanwhile, so nothing else would look again."""
    with Rig(memory_path / "0", **SMALL) as rig:
        rig.publish(make(rig), numbered(30))
        rig.close()
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        vfs.fail(OPEN, errno.EMFILE, times=1 << 20)
        limit(log, bytes_max=3 * 24, age_max_ns=SECOND)
        rig.advance(5)
        assert log.first_seq == 1
        vfs.heal()
        rig.advance(2)
        assert log.first_seq == log.visible


def test_a_file_that_cannot_be_opened_now_keeps_its_messages(memory_path: Path) -> None:
    """The limits remove what exceeds them, and no more, once they can read the file."""
    with Rig(memory_path / "0", **SMALL) as rig:
        rig.publish(make(rig), numbered(60))
        rig.close()
    with Rig(memory_path / "0", **SMALL) as rig:
        log = rig.engine.log("t")
        limiter = limit(log, msgs_max=40)
        limiter.set_limits(39, 0, 0)
        before = len(log.segments)
        vfs.fail(OPEN, errno.EMFILE, times=1 << 20)
        limiter.set_limits(20, 0, 0)
        assert len(log.segments) == before - 1
        vfs.heal()
        rig.advance(2)
        assert log.first_seq == 41
        assert readable_bodies(rig, log) == numbered(60)[40:]
        assert not rig.engine.shared.quarantined_ranges
