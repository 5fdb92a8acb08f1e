"""Atomic batches, as nats-server 2.15.2 answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import CREATE, RENAME, SYNC, WRITE, Rig, wait
from support.streams import StreamCase, get

from broker.protocols.jetstream.publish.stream import Stream
from broker.runtime import vfs

TIMEOUT_S = 10


class Case(StreamCase):
    """A stream with atomic batches, and the advisories of those that were abandoned."""

    def __init__(self, rig: Rig, limits: dict[str, Any] | None = None, **more: Any) -> None:
        super().__init__(rig)
        self.stream: Stream = self.make(limits, **{"allow_atomic": True, **more})
        self.abandoned: list[tuple[str, str]] = []
        self.stream.send_advisory = lambda _subject, _kind, fields: self.abandoned.append(
            (fields["batch"], fields["reason"])
        )

    def add(
        self,
        batch: str,
        number: int | str,
        subject: str = "s.a",
        data: bytes = b"x",
        **headers: str,
    ) -> bytes:
        """Publish one message of a batch; its answer."""
        return self.ask(
            subject, data, Nats_Batch_Id=batch, Nats_Batch_Sequence=str(number), **headers
        )

    def refused(self, batch: str, number: int | str, **more: Any) -> tuple[int, str]:
        answer = json.loads(self.add(batch, number, **more))
        assert (answer["stream"], answer["seq"]) == ("S", 0)
        return answer["error"]["err_code"], answer["error"]["description"]

    def commit(self, batch: str, number: int, **more: Any) -> bytes:
        return self.add(batch, number, Nats_Batch_Commit="1", **more)

    def not_committed(self, batch: str, number: int, **more: Any) -> tuple[int, str]:
        return self.refused(batch, number, Nats_Batch_Commit="1", **more)


def done(seq: int, batch: str, count: int) -> bytes:
    return b'{"stream":"S","seq":%d,"batch":"%s","count":%d}' % (seq, batch.encode(), count)


INCOMPLETE = (10176, "atomic publish batch is incomplete")


@pytest.fixture
def case() -> Iterator[Case]:
    with Rig(None) as rig:
        yield Case(rig, allow_rollup_hdrs=True, allow_msg_ttl=True)


def test_a_batch_is_stored_by_its_commit(case: Case) -> None:
    assert case.add("b", 1, "s.a", b"1") == b""
    assert case.add("b", 2, "s.b", b"2") == b""
    assert case.stream.store.messages == 0
    assert case.commit("b", 3, subject="s.c", data=b"3") == done(3, "b", 3)
    block = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\n\r\n"
    assert get(case.stream, seq=1) == ("s.a", 1, block, b"1")
    assert get(case.stream, seq=3)[3] == b"3"


def test_a_batch_of_one_message(case: Case) -> None:
    assert case.commit("b", 1) == done(1, "b", 1)


def test_an_end_marker_is_not_stored(case: Case) -> None:
    case.add("b", 1)
    assert case.add("b", 2, Nats_Batch_Commit="eob") == done(1, "b", 1)
    assert case.stream.store.messages == 1
    assert get(case.stream, seq=1)[2].endswith(b": 1\r\nNats-Batch-Commit: 1\r\n\r\n")
    assert case.refused("c", 1, Nats_Batch_Commit="eob") == INCOMPLETE


def test_a_batch_without_replies(case: Case) -> None:
    for number in (1, 2):
        case.send("s.a", b"x", Nats_Batch_Id="b", Nats_Batch_Sequence=str(number))
    assert case.commit("b", 3) == done(3, "b", 3)


def test_batches_need_a_permission(case: Case) -> None:
    config = case.stream.config
    config.allow_atomic = False
    case.stream.configure(config)
    assert case.refused("b", 1) == (10174, "atomic publish is disabled")


@pytest.mark.parametrize(
    ("batch", "number", "headers", "error"),
    [
        ("b", 2, {}, INCOMPLETE), ("b", 0, {}, INCOMPLETE),
        ("b", "x", {}, (10175, "atomic publish sequence is missing")),
        ("b", "", {}, (10175, "atomic publish sequence is missing")),
        ("x" * 65, 1, {}, (10179, "atomic publish batch ID is invalid")),
        ("b", 1001, {}, (10199, "atomic publish batch is too large: 1000")),
        ("b", 1, {"Nats_Batch_Commit": "2"}, (10200, "atomic publish batch commit is invalid")),
        ("b", 1, {"Nats_Batch_Commit": ""}, (10200, "atomic publish batch commit is invalid")),
        ("b", 1, {"Nats_Required_Api_Level": "99"}, (
            10185, "JetStream minimum api level required")),
    ],
)  # fmt: skip
def test_how_a_batch_does_not_begin(
    case: Case, batch: str, number: int | str, headers: dict[str, str], error: tuple[int, str]
) -> None:
    assert case.refused(batch, number, **headers) == error
    assert case.not_committed("b", 2) == INCOMPLETE


def test_the_longest_id(case: Case) -> None:
    assert case.commit("x" * 64, 1) == done(1, "x" * 64, 1)


@pytest.mark.parametrize("number", [1, 3])
def test_a_gap_ends_a_batch(case: Case, number: int) -> None:
    case.add("b", 1)
    assert case.refused("b", number) == INCOMPLETE
    assert case.not_committed("b", 2) == INCOMPLETE
    assert case.abandoned == [("b", "incomplete")]
    assert case.stream.store.messages == 0


def test_a_batch_that_waits_too_long_ends(case: Case) -> None:
    case.add("b", 1)
    case.rig.advance(TIMEOUT_S - 1)
    case.add("b", 2)
    case.add("c", 1)
    case.rig.advance(TIMEOUT_S - 1)
    assert case.abandoned == []
    case.add("c", 2)
    case.rig.advance(2)
    assert case.abandoned == [("b", "timeout")]
    assert case.not_committed("b", 3) == INCOMPLETE
    case.rig.advance(TIMEOUT_S)
    assert case.abandoned == [("b", "timeout"), ("c", "timeout")]


def test_the_size_of_a_batch_is_limited(case: Case) -> None:
    for number in range(1, 1000):
        case.add("b", number)
    assert case.commit("b", 1000) == done(1000, "b", 1000)
    for number in range(1, 1001):
        case.add("c", number)
    assert case.refused("c", 1001) == (10199, "atomic publish batch is too large: 1000")
    assert case.abandoned == [("c", "large")]


def test_the_number_of_open_batches_is_limited(case: Case) -> None:
    for number in range(50):
        assert case.add(f"b{number}", 1) == b""
    assert case.refused("c", 1) == (10210, "atomic publish too many inflight")
    case.commit("b0", 2)
    assert case.add("c", 1) == b""


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ({"Nats_Msg_Id": "1"}, {"Nats_Msg_Id": "1"}, (
            10201, "atomic publish batch contains duplicate message id")),
        ({"Nats_Msg_Id": "known"}, {}, (
            10201, "atomic publish batch contains duplicate message id")),
        ({"Nats_Expected_Last_Sequence": "9"}, {}, (10071, "wrong last sequence: 1")),
        ({}, {"Nats_Expected_Last_Sequence": "1"}, (10071, "wrong last sequence: 2")),
        ({"Nats_Expected_Last_Sequence": "x"}, {}, (10071, "wrong last sequence: 1")),
        ({"Nats_Expected_Last_Msg_Id": "known"}, {}, (
            10177, "atomic publish unsupported header used: Nats-Expected-Last-Msg-Id")),
        ({}, {"Nats_Expected_Last_Subject_Sequence": "0"}, (10164, "wrong last sequence")),
        ({}, {"Nats_Rollup": "sub"}, (10111, "batch rollup sub invalid")),
        ({}, {"Nats_Rollup": "all"}, (10111, "batch rollup all invalid")),
        ({"Nats_Rollup": "bogus"}, {}, (10111, 'rollup value invalid: "bogus"')),
        ({"Nats_Expected_Stream": "Q"}, {}, (10060, "expected stream does not match")),
        ({"Nats_TTL": "junk"}, {}, (10165, "invalid per-message TTL")),
        ({"Nats_Incr": "1"}, {}, (10168, "message counters is disabled")),
    ],
)  # fmt: skip
def test_one_refused_message_ends_the_batch(
    case: Case, first: dict[str, str], second: dict[str, str], error: tuple[int, str]
) -> None:
    case.ask("s.z", Nats_Msg_Id="known")
    assert case.add("b", 1, **first) == b""
    assert case.not_committed("b", 2, **second) == error
    assert case.stream.store.last_seq == 1


def test_messages_count_as_stored_for_those_after_them(case: Case) -> None:
    case.add("b", 1, "s.a", Nats_Expected_Last_Subject_Sequence="0")
    case.add("b", 2, "s.b", Nats_Expected_Last_Subject_Sequence="0")
    assert case.commit("b", 3, subject="s.c", Nats_Expected_Last_Sequence="2") == done(3, "b", 3)
    case.add("c", 1, "s.a")
    assert case.commit("c", 2, subject="s.b", Nats_Rollup="sub") == done(5, "c", 2)
    assert get(case.stream, seq=2) is None


def test_ids_of_a_batch_are_remembered(case: Case) -> None:
    case.commit("b", 1, Nats_Msg_Id="1")
    assert case.ask("s.a", Nats_Msg_Id="1") == b'{"stream":"S","seq":1,"duplicate": true}'


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_msgs": 2, "discard_new": True}, "maximum messages exceeded"),
        ({"max_bytes": 200, "discard_new": True}, "maximum bytes exceeded"),
        ({"max_msgs_per_subject": 2, "discard_new": True, "discard_new_per_subject": True},
         "maximum messages per subject exceeded"),
    ],
)  # fmt: skip
def test_a_stream_without_room_for_all_stores_nothing(limits: dict[str, Any], text: str) -> None:
    with Rig(None) as rig:
        case = Case(rig, limits)
        for number in (1, 2):
            case.add("b", number)
        assert case.not_committed("b", 3) == (10077, text)
        assert case.stream.store.messages == 0
        case.add("b", 1)
        assert case.commit("b", 2) == done(2, "b", 2)


def test_a_batch_may_replace_messages_of_a_full_stream() -> None:
    with Rig(None) as rig:
        case = Case(rig, {"max_msgs_per_subject": 1, "max_msgs": 1, "discard_new": True})
        case.ask("s.a")
        case.add("b", 1)
        assert case.commit("b", 2) == done(3, "b", 2)
        assert case.not_committed("c", 1, subject="s.b") == (10077, "maximum messages exceeded")


def test_an_account_without_room_for_all_stores_nothing() -> None:
    with Rig(None) as rig:
        case = Case(rig)
        case.stream.has_room = lambda size: size < 200
        for number in (1, 2):
            case.add("b", number)
        assert case.not_committed("b", 3) == (10002, "resource limits exceeded for account")
        assert case.stream.store.messages == 0
        case.add("b", 1)
        assert case.commit("b", 2) == done(2, "b", 2)


def test_counters_of_a_batch_add_up() -> None:
    with Rig(None) as rig:
        case = Case(rig, allow_msg_counter=True)
        case.add("b", 1, data=b"", Nats_Incr="1")
        assert case.commit("b", 2, data=b"", Nats_Incr="5") == (
            b'{"stream":"S","seq":2,"val":"6","batch":"b","count":2}'
        )


def test_a_failed_write_stores_nothing_of_a_batch(tmp_path: Path) -> None:
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig)
        for number in range(1, 100):
            case.add("b", number, Nats_Msg_Id=str(number))
        vfs.fail(WRITE, 28, partial=2000)
        assert case.not_committed("b", 100)[0] == 10077
        vfs.heal()
        rig.advance(3)
        assert case.stream.store.messages == 0
        assert case.commit("b", 1, Nats_Msg_Id="1") == done(1, "b", 1)


@pytest.mark.parametrize("commit", ["1", "eob"])
def test_a_part_of_a_batch_is_dropped_at_the_start(tmp_path: Path, commit: str) -> None:
    """As a crash in the middle of a write may leave it."""
    logs = tmp_path / "logs"
    with Rig(logs, sync="always") as rig:
        case = Case(rig)
        case.commit("a", 1)
        for number in range(1, 6):
            case.add("b", number)
        assert json.loads(case.add("b", 6, Nats_Batch_Commit=commit))["batch"] == "b"
        rig.close()
    with Rig(logs, sync="always") as rig:
        case = Case(rig)
        assert case.stream.store.messages == (7 if commit == "1" else 6)
        rig.close()
    (segment,) = logs.rglob("*.seg")
    whole = segment.read_bytes()
    at = whole.index(b"Nats-Batch-Sequence: 4")
    segment.write_bytes(whole[:at] + bytes(len(whole) - at))
    with Rig(logs, sync="always") as rig:
        case = Case(rig)
        assert case.stream.store.messages == 1
        assert case.commit("c", 1)[:12] == b'{"stream":"S'
        rig.close()
    with Rig(logs, sync="always") as rig:
        assert Case(rig).stream.store.messages == 2


def cut_at(logs: Path, mark: bytes) -> None:
    """Let the only segment of a log end before this, as a crash may leave it."""
    (segment,) = [each for each in logs.rglob("*.seg") if mark in each.read_bytes()]
    whole = segment.read_bytes()
    at = whole.index(mark)
    segment.write_bytes(whole[:at] + bytes(len(whole) - at))


@pytest.mark.parametrize(
    ("limits", "rollup"),
    [({"max_msgs_per_subject": 1}, False), ({"max_msgs": 3}, False), ({}, True)],
)
def test_what_a_part_of_a_batch_would_replace_stays(
    tmp_path: Path, limits: dict[str, int], rollup: bool
) -> None:
    subjects = ["s.a", "s.b", "s.c"]
    more = {"Nats_Rollup": "sub"} if rollup else {}
    with Rig(tmp_path / "logs", sync="always") as rig:
        case = Case(rig, limits, allow_rollup_hdrs=True)
        for subject in subjects:
            case.ask(subject, b"old")
        vfs.hold(SYNC)  # the kill comes before it is over
        for number, subject in enumerate(["s.a", "s.b", "s.b"], 1):
            case.add("b", number, subject, **(more if number < 3 else {}))
        case.send(
            "s.c",
            b"x",
            "reply.c",
            Nats_Batch_Id="b",
            Nats_Batch_Sequence="4",
            Nats_Batch_Commit="1",
        )
        rig.until(lambda: vfs.held(SYNC) == 1)
        shutil.copytree(tmp_path / "logs", tmp_path / "after")
        vfs.release(SYNC)
    cut_at(tmp_path / "after", b"Nats-Batch-Sequence: 4")
    for start in range(3):
        with Rig(tmp_path / "after", sync="always") as rig:
            case = Case(rig, limits, allow_rollup_hdrs=True)
            found = [get(case.stream, last_by_subj=subject) for subject in subjects]
            assert [each and (each[1], each[3]) for each in found] == [
                (1, b"old"), (2, b"old"), (3, b"old"),
            ]  # fmt: skip
            assert case.stream.store.messages == 3
            if start:
                rig.close()
            else:
                rig.crash(tmp_path / "crashed")
                shutil.rmtree(tmp_path / "after")
                (tmp_path / "crashed").rename(tmp_path / "after")
    with Rig(tmp_path / "after", sync="always") as rig:
        assert json.loads(Case(rig, limits).ask("s.d"))["seq"] > 3


@pytest.mark.parametrize("call", [CREATE, RENAME])
def test_a_part_of_a_batch_is_dropped_on_a_failing_disk(tmp_path: Path, call: int) -> None:
    logs = tmp_path / "logs"
    with Rig(logs, sync="always") as rig:
        case = Case(rig)
        for number in range(1, 6):
            case.add("b", number)
        case.commit("b", 6)
        rig.crash(tmp_path / "after")
    cut_at(tmp_path / "after", b"Nats-Batch-Sequence: 4")
    with Rig(tmp_path / "after", sync="always") as rig:
        vfs.fail(call, 28, times=1000)
        case = Case(rig)
        assert case.stream.store.messages == 0
        vfs.heal()
        rig.advance(3)
        first = json.loads(case.ask("s.d"))["seq"]
        assert case.stream.store.messages == 1
        rig.close()
    with Rig(tmp_path / "after", sync="always") as rig:
        case = Case(rig)
        assert case.stream.store.messages == 1
        assert case.stream.store.first_seq == first


def test_a_batch_whose_last_message_is_deleted_stays(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with Rig(logs, sync="always") as rig:
        case = Case(rig)
        case.add("b", 1)
        assert case.commit("b", 2) == done(2, "b", 2)
        assert wait(rig, case.stream.store.delete(2, erase=True))
        rig.crash(tmp_path / "after")
    with Rig(tmp_path / "after", sync="always") as rig:
        assert Case(rig).stream.store.messages == 1


def test_a_part_of_a_batch_is_dropped_before_a_torn_tail_that_stays(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with Rig(logs, sync="always") as rig:
        case = Case(rig)
        for number in range(1, 4):
            case.add("b", number)
        case.commit("b", 4)
        rig.crash(tmp_path / "after")
    cut_at(tmp_path / "after", b"Nats-Batch-Sequence: 4")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker.engine.recovery.save_torn_tail", full)
        with Rig(tmp_path / "after", sync="always") as rig:
            assert any("stays at" in text for text in rig.engine.problems)
            assert Case(rig).stream.store.messages == 0
