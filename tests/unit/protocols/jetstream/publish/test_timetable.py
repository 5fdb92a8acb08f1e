"""Scheduled messages of a stream, as nats-server 2.15.2 handles them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import SYNC, WRITE, Rig
from support.streams import StreamCase, ack, get

from broker.protocols.jetstream.publish.schedules import parse
from broker.protocols.jetstream.publish.stream import Stream
from broker.protocols.jetstream.publish.timetable import Timetable
from broker.protocols.jetstream.structs import time_text
from broker.runtime import vfs

SECOND = 10**9
START = 1_795_650_000 * SECOND  # a full minute
FAR = "@at 2040-01-01T00:00:00Z"


class Case(StreamCase):
    """A stream that allows schedules, on a clock that the test moves."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.now = rig.loop.now_ns
        self.wall = START
        self.go(0)
        self.stream: Stream = self.make(
            allow_msg_schedules=True, allow_rollup_hdrs=True, allow_msg_ttl=True
        )

    def go(self, seconds: float) -> None:
        """Let time pass; what waited for the file comes a little later."""
        for step in (int(seconds * SECOND), SECOND // 50, SECOND // 50):
            self.now += step
            self.wall += step
            self.rig.turn.set_clock(self.now, self.wall)
            self.rig.turn.run_timers()
            self.rig.settle()

    def plan(
        self, schedule: str, subject: str = "s.plan", data: bytes = b"body", **more: str
    ) -> Any:
        headers = {"Nats_Schedule": schedule, "Nats_Schedule_Target": "s.t", **more}
        return self.ask(subject, data, **headers)

    def refused(self, schedule: str, **more: str) -> int:
        headers = {"Nats_Schedule": schedule, "Nats_Schedule_Target": "s.t", **more}
        return self.error("s.plan", b"body", **headers)[0]

    def last(self, subject: str) -> Any:
        return get(self.stream, last_by_subj=subject)


@pytest.fixture
def case() -> Iterator[Case]:
    with Rig(None) as rig:
        yield Case(rig)


def lines(*texts: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{text}\r\n" for text in texts) + "\r\n").encode()


def test_a_message_at_a_time(case: Case) -> None:
    due = time_text(START + 10 * SECOND)
    assert case.plan(f"@at {due}", A="b", Nats_Msg_Id="1", Nats_Expected_Stream="S") == ack(1)
    assert case.last("s.plan")[2] == lines(
        f"Nats-Schedule: @at {due}", "Nats-Schedule-Target: s.t", "A: b", "Nats-Msg-Id: 1",
        "Nats-Expected-Stream: S", "Nats-Rollup: sub",
    )  # fmt: skip
    case.go(9.9)
    assert case.last("s.t") is None
    case.go(0.1)
    assert case.last("s.t") == (
        "s.t", 2, lines("A: b", "Nats-Scheduler: s.plan", "Nats-Schedule-Next: purge"), b"body",
    )  # fmt: skip
    assert case.last("s.plan") is None
    case.go(100)
    assert case.stream.store.last_seq == 2


def test_a_time_that_is_over(case: Case) -> None:
    case.plan("@at 2020-01-01T00:00:00Z")
    case.go(0.1)
    assert case.last("s.t")[3] == b"body"
    assert case.last("s.plan") is None


def test_a_message_again_and_again(case: Case) -> None:
    case.plan("@every 2s")
    for place in range(1, 4):
        case.go(2)
        headers = lines(
            "Nats-Scheduler: s.plan",
            f"Nats-Schedule-Next: {time_text(START + (2 * place + 2) * SECOND)}",
        )
        assert case.last("s.t") == ("s.t", place + 1, headers, b"body")
    assert case.last("s.plan")[1] == 1


@pytest.mark.parametrize("pattern", ["@every 2s", "*/2 * * * * *"])
def test_messages_go_on_after_the_clock_was_set_back(case: Case, pattern: str) -> None:
    """Also those that are stored later, whose times cannot be earlier than that of the last."""
    case.wall += 400 * 24 * 3600 * SECOND
    case.plan(pattern)
    case.go(2)
    case.wall = START
    case.go(60)  # until it is noticed
    case.plan(pattern, "s.plan.2", b"other", Nats_Schedule_Target="s.t.2")
    before = case.last("s.t")[1]
    case.go(2)
    assert case.last("s.t")[1] > before
    assert case.last("s.t.2")[3] == b"other"


def test_the_clock_is_set_back_before_it_was_first_checked(case: Case) -> None:
    """As when a machine starts with a wrong clock, and learns the time soon after."""
    case.wall += 400 * 24 * 3600 * SECOND
    case.go(0)
    case.plan("@every 2s")
    case.wall = START
    case.go(60)
    case.go(2)
    assert case.last("s.t")[3] == b"body"


def test_many_schedules_are_adjusted_in_several_turns(case: Case) -> None:
    case.wall += 400 * 24 * 3600 * SECOND
    case.go(0)
    targets = [f"s.t.{i}" for i in range(60)]
    for i, target in enumerate(targets):
        case.plan("*/2 * * * * *", f"s.plan.{i}", Nats_Schedule_Target=target)
    case.wall = START
    case.go(60)
    case.go(2)
    assert {case.last(target)[3] for target in targets} == {b"body"}


def test_the_timetable_adjusts_so_many_at_a_time() -> None:
    table = Timetable()
    hourly = parse("@hourly")
    late_ns, right_ns = START + 400 * 24 * 3600 * SECOND, hourly.first(START)
    for i in range(5):
        table.set(b"s.%d" % i, i + 1, hourly, late_ns)
    table.adjust()
    table.adjust_some(START, 3)
    assert table.is_adjusting
    assert (
        sorted(entry.due_ns for entry in table.entries.values()) == [right_ns] * 3 + [late_ns] * 2
    )
    table.drop(next(key for key, entry in table.entries.items() if entry.due_ns == late_ns))
    table.adjust_some(START, 3)
    assert not table.is_adjusting
    assert [entry.due_ns for entry in table.entries.values()] == [right_ns] * 4
    assert table.next_ns() == right_ns


def test_a_message_by_a_cron_pattern(case: Case) -> None:
    case.plan("30 * * * * *")
    case.go(29)
    assert case.last("s.t") is None
    case.go(1)
    assert case.last("s.t")[1] == 2


def test_ttl_rollup_and_source_of_a_scheduled_message(case: Case) -> None:
    case.ask("s.source", b"other", H="1", Nats_Msg_Id="2")
    case.ask("s.t", b"before")
    case.plan(
        "@every 5s", Nats_Schedule_TTL="100s", Nats_Schedule_Rollup="sub", X="y",
        Nats_Schedule_Source="s.source",
    )  # fmt: skip
    case.go(5)
    assert case.last("s.t")[2:] == (
        lines(
            "H: 1", "Nats-Scheduler: s.plan",
            f"Nats-Schedule-Next: {time_text(START + 10 * SECOND)}", "Nats-TTL: 100s",
            "Nats-Rollup: sub",
        ),
        b"other",
    )  # fmt: skip
    assert get(case.stream, seq=2) is None  # rolled up


def test_without_its_source_a_schedule_publishes_itself(case: Case) -> None:
    case.plan("@every 5s", Nats_Schedule_Source="s.none")
    case.go(5)
    assert case.last("s.t")[3] == b"body"


@pytest.mark.parametrize(
    ("schedule", "headers", "code"),
    [
        ("@at junk", {}, 10189), (FAR, {"Nats_Schedule_Time_Zone": "UTC"}, 10189),
        ("@daily", {"Nats_Schedule_Time_Zone": "Nowhere"}, 10223),
        (FAR, {"Nats_Schedule_Target": ""}, 10190), (FAR, {"Nats_Schedule_Target": "s.*"}, 10190),
        (FAR, {"Nats_Schedule_Target": "q.t"}, 10190),
        (FAR, {"Nats_Schedule_Target": "s.plan"}, 10190),
        (FAR, {"Nats_Schedule_Target": "s..t"}, 10190),
        (FAR, {"Nats_Schedule_TTL": "junk"}, 10191), (FAR, {"Nats_Schedule_Rollup": "all"}, 10192),
        (FAR, {"Nats_Rollup": "all"}, 10192), (FAR, {"Nats_Schedule_Source": "s.*"}, 10203),
        (FAR, {"Nats_Schedule_Source": "s.t"}, 10203), (FAR, {"Nats_Schedule_Source": "q"}, 10203),
        (FAR, {"Nats_Schedule_Source": "s.plan"}, 10203), (FAR, {"Nats_Scheduler": "s.t"}, 10212),
    ],
)  # fmt: skip
def test_what_is_refused(case: Case, schedule: str, headers: dict[str, str], code: int) -> None:
    assert case.refused(schedule, **headers) == code


def test_what_is_taken(case: Case) -> None:
    for schedule in (FAR, "@hourly", "0 0 12 * * *", "@every 1.5s"):
        assert b'"error"' not in case.plan(schedule, Nats_Rollup="sub", Nats_Schedule_TTL="never")
    assert b'"error"' not in case.plan("@daily", Nats_Schedule_Time_Zone="Europe/Berlin")
    assert b'"error"' not in case.plan("")  # is no schedule
    assert case.stream.store.messages == 2


def test_schedules_need_a_permission(case: Case) -> None:
    case.stream.close()
    case.stream = case.make(name="T", subjects=["t.>"])
    headers = {"Nats_Schedule": FAR, "Nats_Schedule_Target": "t.t"}
    assert b'"err_code":10188' in case.ask("t.a", **headers)
    headers = {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "t.b"}
    assert b'"err_code":10212' in case.ask("t.a", **headers)


def test_a_later_message_ends_a_schedule(case: Case) -> None:
    case.plan("@every 1s")
    case.ask("s.plan", b"other")
    case.go(3)
    assert case.last("s.t") is None


def test_a_later_schedule_replaces_one(case: Case) -> None:
    case.plan("@every 1s")
    case.plan("@every 10s", data=b"new")
    case.go(5)
    assert case.last("s.t") is None
    case.go(5)
    assert case.last("s.t")[3] == b"new"


def test_a_deleted_schedule_ends(case: Case) -> None:
    case.plan("@every 1s")
    case.ask("s.z", Nats_Rollup="all")
    case.go(3)
    assert case.last("s.t") is None


def test_a_schedule_is_cancelled(case: Case) -> None:
    case.plan(FAR)
    cancel = {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "s.plan"}
    assert case.error("s.plan", **cancel)[0] == 10212
    assert case.error("s.c", **{**cancel, "Nats_Schedule_Next": "x"})[0] == 10212
    assert case.error("s.c", **{**cancel, "Nats_Scheduler": "s.*"})[0] == 10212
    assert case.error("s.c", Nats_Schedule_Next="purge")[0] == 10212
    assert case.ask("s.c", b"gone", **cancel) == ack(2)
    assert case.last("s.plan") is None
    assert case.last("s.c")[3] == b"gone"
    assert case.ask("s.c", **cancel) == ack(3)  # there is none any more
    case.ask("s.plain")
    assert case.error("s.c", **{**cancel, "Nats_Scheduler": "s.plain"})[0] == 10212


def test_a_schedule_is_cancelled_in_the_turn_in_which_it_came(case: Case) -> None:
    case.send("s.plan", b"x", Nats_Schedule=FAR, Nats_Schedule_Target="s.t")
    case.send("s.c", b"x", Nats_Schedule_Next="purge", Nats_Scheduler="s.plan")
    case.go(0.1)
    assert case.last("s.plan") is None


def test_schedules_survive_a_restart(tmp_path: Path) -> None:
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        case.plan("@every 10s", "s.repeated")
        case.plan(f"@at {time_text(START + 25 * SECOND)}", "s.once", Nats_Schedule_Target="s.u")
        case.go(11)
        assert case.last("s.t")[1] == 3
        rig.close()
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        case.wall = START + 57 * SECOND
        case.stream.close()
        case.go(0)
        case.stream = case.make(
            allow_msg_schedules=True, allow_rollup_hdrs=True, allow_msg_ttl=True
        )
        case.go(0.1)
        # once for what was missed, then at its own times
        assert case.stream.store.last_seq == 5
        assert case.last("s.u")[3] == b"body"
        assert case.last("s.once") is None
        assert (
            b"Nats-Schedule-Next: " + time_text(START + 60 * SECOND).encode() in case.last("s.t")[2]
        )
        case.go(3)
        assert case.stream.store.last_seq == 6


@pytest.mark.parametrize("call", [WRITE, SYNC])
def test_what_the_disk_refuses_changes_no_schedule(tmp_path: Path, call: int) -> None:
    due = time_text(START + 20 * SECOND)
    refused: list[tuple[str, dict[str, str]]] = [
        ("s.a", {"Nats_Schedule": FAR, "Nats_Schedule_Target": "s.t.a"}),
        ("s.b", {}),
        ("s.x", {"Nats_Scheduler": "s.c", "Nats_Schedule_Next": "purge"}),
    ]
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        for name in "abc":
            case.plan(f"@at {due}", f"s.{name}", Nats_Schedule_Target=f"s.t.{name}")
        for subject, headers in refused:
            vfs.fail(call, 28)
            assert case.error(subject, **headers)[0] == 10077
            vfs.heal()
            case.go(3)
        assert [case.last(f"s.{name}")[3] for name in "abc"] == [b"body"] * 3
        case.go(20)
        assert [case.last(f"s.t.{name}")[3] for name in "abc"] == [b"body"] * 3
        assert [case.last(f"s.{name}") for name in "abc"] == [None] * 3


@pytest.mark.parametrize("call", [WRITE, SYNC])
def test_what_is_due_while_the_disk_fails_comes_later(tmp_path: Path, call: int) -> None:
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        case.plan(f"@at {time_text(START + 10 * SECOND)}", "s.a", Nats_Schedule_Target="s.t.a")
        case.plan("@every 10s", "s.b", Nats_Schedule_Target="s.t.b")
        vfs.fail(call, 28, times=1000)
        for _ in range(6):
            case.go(2)
        assert case.stream.store.messages == 2
        assert [case.last(f"s.{name}")[3] for name in "ab"] == [b"body"] * 2
        vfs.heal()
        for _ in range(3):
            case.go(2)
        assert [case.last(f"s.t.{name}")[3] for name in "ab"] == [b"body"] * 2
        assert case.stream.store.messages == 3
        assert case.last("s.a") is None
        assert case.last("s.b")[3] == b"body"
        case.go(3)
        assert case.stream.store.messages == 4  # the next one keeps its time


def test_a_schedule_in_a_lost_file_keeps_no_other(tmp_path: Path) -> None:
    due = time_text(START + 60 * SECOND)
    with Rig(tmp_path / "logs", sync="always", segment_bytes=4096) as rig:
        case = Case(rig)
        case.plan(f"@at {due}", "s.a", Nats_Schedule_Target="s.t.a")
        for _ in range(150):
            case.ask("s.other", b"x")
        case.plan(f"@at {due}", "s.b", Nats_Schedule_Target="s.t.b")
        first, *more = sorted(tmp_path.rglob("*.seg"))
        assert more
        for _ in range(5):
            case.go(1)  # the files are closed
        lost = first.rename(first.with_suffix(".lost"))
        case.go(60)
        assert case.last("s.t.b")[3] == b"body"
        assert case.last("s.t.a") is None
        case.plan("@every 5s", "s.c", Nats_Schedule_Target="s.t.c")
        case.go(6)
        assert case.last("s.t.c")[3] == b"body"
        lost.rename(first)
        case.go(12)
        assert case.last("s.t.a")[3] == b"body"
        assert case.last("s.a") is None


def test_schedules_may_be_allowed_later(case: Case) -> None:
    stream = case.make(name="T", subjects=["t.>"])
    config = stream.config
    config.allow_msg_schedules = True
    stream.configure(config)
    headers = {"Nats_Schedule": "@every 1s", "Nats_Schedule_Target": "t.t"}
    assert b'"error"' not in case.ask("t.a", **headers)


def test_a_timetable_forgets_what_is_replaced() -> None:
    timetable = Timetable()
    schedule = parse("@every 1s")
    for due in range(1, 10_000):
        timetable.set(b"a", due, schedule, due)
    assert len(timetable._heap) < 100
    assert timetable.next_ns() == 9_999
    assert timetable.pop(9_998) is None
    found = timetable.pop(9_999)
    assert found is not None
    assert found[1].seq == 9_999
    assert timetable.next_ns() == 0


@pytest.mark.parametrize("deleted", [True, False])
def test_a_stream_that_ends_while_it_cancels_a_schedule_leaves_no_work(
    tmp_path: Path, deleted: bool
) -> None:
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        case.plan(FAR, "s.a")
        vfs.hold(SYNC)
        case.send("s.x", b"x", "reply.x", Nats_Scheduler="s.a", Nats_Schedule_Next="purge")
        rig.until(lambda: vfs.held(SYNC) == 1)
        case.stream.close()
        case.stream.store.close()
        if deleted:
            rig.engine.delete_log("js.$G/S")
        vfs.release(SYNC)
        while not any(to == "reply.x" for to, _ in case.answers):
            rig.loop.serve(1)
            rig.loop.run_once()
        turns, most = 0, 20
        while rig.loop._soon and turns < most:
            rig.loop.run_once()
            turns += 1
        rig.loop._soon.clear()  # else it would never end
        assert turns < most


def test_a_schedule_stays_cancelled_when_a_later_cancel_fails(tmp_path: Path) -> None:
    cancel = {"Nats_Scheduler": "s.a", "Nats_Schedule_Next": "purge"}
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        case.plan(f"@at {time_text(START + 20 * SECOND)}", "s.a")
        vfs.hold(SYNC)
        case.send("s.x", b"x", "reply.x", **cancel)
        rig.until(lambda: vfs.held(SYNC) == 1)
        vfs.fail(WRITE, 28, times=1000)  # a journal may be written too
        case.send("s.y", b"y", "reply.y", **cancel)
        vfs.release(SYNC)
        rig.settle()
        vfs.heal()
        answers = {to: b"error" in answer for to, answer in case.answers}
        assert (answers["reply.x"], answers["reply.y"]) == (False, True)
        case.go(3)
        assert case.last("s.a") is None
        case.go(20)
        assert case.last("s.t") is None
