"""Fast batches: limits, timeouts, and that an answer waits for the disk. What is answered to which
message is compared with nats-server in tests/interop/test_jetstream_fast.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import SYNC, Rig
from support.streams import StreamCase, ack, get

from broker.protocols.jetstream.publish.stream import Stream
from broker.runtime import vfs

START, APPEND, COMMIT, COMMIT_ONLY, PING = range(5)
TIMEOUT_S = 10


class Case(StreamCase):
    """A stream with fast batches, and all answers to their publishers."""

    def __init__(self, rig: Rig, **more: Any) -> None:
        super().__init__(rig)
        self.stream: Stream = self.make(**{"allow_batched": True, **more})
        self.came: list[dict[str, Any]] = []
        self.account.listen(b"in.>", lambda message: self.came.append(json.loads(message.data)))

    def put(
        self, number: int, op: int = APPEND, batch: str = "b", mode: str = "fail", every: int = 3
    ) -> None:
        """Publish one message, and do not wait."""
        self.send("s.a", b"%d" % number, f"in.{batch}.{every}.{mode}.{number}.{op}.$FI")

    def begin(self, count: int = 1, **more: Any) -> None:
        for number in range(1, count + 1):
            self.put(number, APPEND if number > 1 else START, **more)

    def answers_now(self) -> list[dict[str, Any]]:
        self.rig.settle()
        found, self.came = self.came, []
        return found


def flow(seq: int, msgs: int = 3) -> dict[str, Any]:
    return {"type": "ack", "seq": seq, "msgs": msgs}


def done(seq: int, count: int, batch: str = "b") -> dict[str, Any]:
    return {"stream": "S", "seq": seq, "batch": batch, "count": count}


def error(answers: list[dict[str, Any]]) -> int:
    assert len(answers) == 1
    return int(answers[0]["error"]["err_code"])


@pytest.fixture
def case() -> Iterator[Case]:
    with Rig(None) as rig:
        yield Case(rig)


def test_answers_wait_for_the_disk(tmp_path: Path) -> None:
    """The first one does not: it says nothing of what is stored."""
    with Rig(tmp_path, sync="always") as rig:
        case = Case(rig)
        vfs.hold(SYNC)
        case.begin(3)
        rig.until(lambda: vfs.held(SYNC) == 1)
        assert case.came == [flow(0)]
        case.put(4, COMMIT)
        rig.loop.run()
        assert case.came == [flow(0)]
        vfs.release(SYNC)
        assert case.answers_now() == [flow(0), flow(3), done(4, 4)]


def test_many_that_wait_are_answered_together(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        case = Case(rig)
        case.begin()
        assert case.answers_now() == [flow(0)]
        for number in range(2, 12):
            case.put(number)
        assert case.answers_now() == [flow(9)]
        case.put(12)
        assert case.answers_now() == [flow(12)]


@pytest.mark.parametrize("op", [APPEND, COMMIT, COMMIT_ONLY])
def test_a_failed_sync_ends_a_batch(tmp_path: Path, op: int) -> None:
    """Also if no answer was waiting when it failed."""
    with Rig(tmp_path, sync="always") as rig:
        case = Case(rig)
        case.begin()
        assert case.answers_now() == [flow(0)]
        vfs.fail(SYNC, 5)
        case.put(2)
        assert case.answers_now() == []
        rig.advance(2)
        case.put(3, op)
        assert error(case.answers_now()) == 10077
        case.put(4)
        assert error(case.answers_now()) == 10208
        assert (get(case.stream, seq=1)[3], case.stream.store.messages) == (b"1", 1)


def test_a_duplicate_in_a_batch_does_not_fail_with_an_earlier_message(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        case = Case(rig)
        assert case.ask("s.a", Nats_Msg_Id="1") == ack(1)
        vfs.fail(SYNC, 5)
        assert case.error("s.a")[0] == 10077
        rig.advance(2)
        for number, op in ((1, START), (2, COMMIT)):
            case.send("s.a", b"", f"in.b.3.fail.{number}.{op}.$FI", Nats_Msg_Id="1")
        first, last = case.answers_now()
        assert (first, last.get("count")) == (flow(0), 2)


def test_a_failed_sync_fails_the_answer_that_waits_for_it(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        case = Case(rig)
        vfs.fail(SYNC, 5)
        case.begin(2)
        case.put(3, COMMIT)
        found = case.answers_now()
        assert (found[0], error(found[1:])) == (flow(0), 10077)
        rig.advance(2)
        case.begin(2)
        assert case.answers_now() == [flow(0)]


def test_a_batch_that_waits_too_long_ends(case: Case) -> None:
    case.begin()
    case.begin(batch="c")
    case.rig.advance(TIMEOUT_S - 1)
    case.put(2)
    case.put(1, PING, batch="c")
    case.answers_now()
    case.rig.advance(2)
    case.put(3, COMMIT_ONLY)
    assert case.answers_now() == [done(3, 2)]
    case.rig.advance(TIMEOUT_S)
    case.put(2, batch="c")
    assert error(case.answers_now()) == 10208
    assert case.stream.store.messages == 3


def test_a_commit_that_waits_for_the_disk_does_not_time_out(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        case = Case(rig)
        vfs.hold(SYNC)
        case.begin(2)
        case.put(3, COMMIT)
        rig.until(lambda: vfs.held(SYNC) == 1)
        for _ in range(3):
            rig.loop.advance(TIMEOUT_S * 1_100_000_000)
            rig.loop.run()
        assert case.came == [flow(0)]
        vfs.release(SYNC)
        assert case.answers_now() == [flow(0), done(3, 3)]


def test_the_number_of_open_batches_is_limited(case: Case) -> None:
    for number in range(1000):
        case.begin(batch=f"b{number}")
    case.answers_now()
    case.begin(batch="more")
    assert error(case.answers_now()) == 10211
    case.put(2, COMMIT, batch="b7")
    case.begin(batch="more")
    assert [each.get("count") for each in case.answers_now()] == [None, 2]


def test_an_id_that_is_used_again_has_nothing_of_the_batch_before(tmp_path: Path) -> None:
    with Rig(tmp_path, sync="always") as rig:
        case = Case(rig)
        vfs.hold(SYNC)
        case.begin(5)
        rig.until(lambda: vfs.held(SYNC) == 1)
        case.stream.configure(case.stream.config)  # nothing changes
        case.put(6, COMMIT)
        case.put(7)
        vfs.release(SYNC)
        assert case.answers_now()[-1] == done(6, 6)
        case.begin(2)
        assert case.answers_now() == [flow(0)]
        case.put(3, COMMIT)
        assert case.answers_now() == [done(9, 3)]
