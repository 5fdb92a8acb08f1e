"""The window of message ids: what it knows, how much, how long, and what it reads from a log."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine import Rig
from support.native.logs import remember

from broker.engine.bulk.dedupe import Window
from broker.engine.log.publish import append

SECOND = 10**9
BIG = 1 << 30


def head(id_: object, name: bytes = b"Id") -> bytes:
    return b"X/1.0\r\nAnother: 1\r\n%s: %a\r\n\r\n" % (name, id_)


def window(ids_max: int = 1000) -> Window:
    return Window(b"Id", 10 * SECOND, ids_max)


@pytest.mark.parametrize(
    "headers",
    [b"", b"Id", b"Id:", b"X\r\nId:\r\n\r\n", b"X\r\nIdle: 1\r\n\r\n", b"X\r\n Id: 1\r\n\r\n"],
)
def test_headers_without_an_id(headers: bytes) -> None:
    assert remember(window(), headers, 1) is None


def test_blanks_around_an_id_do_not_count() -> None:
    known = window()
    assert remember(known, b"X\r\nId:a\r\n\r\n", 1) is False
    assert remember(known, b"X\r\nB: c\r\nId:   a \r\n\r\n", 1) is True
    assert remember(known, b"X\r\nId: A\r\n\r\n", 1) is False


@pytest.mark.parametrize("wide", [16, 40])
def test_no_two_ids_are_the_same_whatever_the_key(wide: int) -> None:
    """A difference in the last of eight bytes is not undone by a known one in the next eight."""
    for first, second in ((0x80, 0x80), (0x20, 0x60), (0x40, 0x40), (0x01, 0x0D)):
        known, taken = window(ids_max=1 << 20), 0
        for number in range(500):
            one = bytearray(b"%08dP%06dP%024d" % (number, number, 0))[:wide]
            one[7:8], one[11:12] = b"a", b"P"
            other = bytearray(one)
            other[7] ^= first
            other[11] ^= second
            other[15] ^= second
            remember(known, b"X\r\nId: " + one + b"\r\n\r\n", 1)
            taken += remember(known, b"X\r\nId: " + other + b"\r\n\r\n", 1) is not False
        assert taken == 0


def test_ids_are_forgotten_in_time() -> None:
    known = window()
    assert remember(known, head(1), 0) is False
    assert remember(known, head(1), 10 * SECOND) is True
    assert remember(known, head(1), 10 * SECOND + 1) is False
    assert known.size == 1


def test_the_oldest_go_when_there_are_too_many() -> None:
    known = window(5000)
    for number in range(20_000):
        assert remember(known, head(number), 1) is False
    assert known.size == 5000
    assert all(remember(known, head(number), 1) for number in range(15_000, 20_000))
    assert remember(known, head(14_999), 1) is False


def test_very_many_ids_as_few() -> None:
    """They are in several tables until the first ones are too old, and then in one."""
    known, each = window(BIG), 20_000
    for second in range(40):
        now = second * SECOND
        for number in range(each):
            assert remember(known, head(second * each + number), now) is False
        youngest_gone = max(0, (second - 10) * each)
        assert known.size == (second + 1) * each - youngest_gone
        for number in range(youngest_gone, (second + 1) * each, 997):
            assert remember(known, head(number), now) is True
        if youngest_gone:
            assert remember(known, head(youngest_gone - 1), now) is False
            break
    assert remember(known, head("later"), 1000 * SECOND) is False
    assert known.size == 1


def test_ids_that_are_too_old_are_not_known_before_they_are_forgotten() -> None:
    """Only some are forgotten with each message, so that the others need not wait."""
    known, count = window(BIG), 5_000
    for number in range(count):
        assert remember(known, head(number), 0) is False
    assert remember(known, head("young"), 5 * SECOND) is False
    later = 10 * SECOND + 1
    assert remember(known, head("young"), later) is True
    assert 1 < known.size < count
    assert remember(known, head(count - 1), later) is False
    assert remember(known, head(count - 1), later) is True
    for _ in range(5):
        assert remember(known, head("young"), later) is True
    assert known.size == 2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=200))
def test_it_does_what_a_dictionary_does(steps: list[tuple[int, int]]) -> None:
    known, model, now = window(12), dict[int, int](), 0
    for id_, wait in steps:
        now += wait * SECOND
        model = {key: time for key, time in model.items() if time >= now - 10 * SECOND}
        assert remember(known, head(id_), now) is (id_ in model)
        if id_ not in model:
            model[id_] = now
            while len(model) > 12:
                del model[next(iter(model))]
        assert known.size == len(model)


def learn(rig: Rig, known: Window, bytes_max: int = BIG) -> bool:
    plan = known.unread_views(rig.log(), bytes_max)
    if plan is not None:
        known.read(plan)
    return plan is not None


def fill(rig: Rig, ids: range) -> None:
    for id_ in ids:
        append(rig.log(), b"." * 100, headers=head(id_))
    rig.settle()


def test_it_learns_what_a_log_has(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=4096) as rig:
        fill(rig, range(200))
        known = window()
        assert learn(rig, known)
        assert known.size == 200
        assert not learn(rig, known)
        fill(rig, range(190, 210))
        assert learn(rig, known)
        assert known.size == 210
        rig.advance(9)
        fill(rig, range(300, 310))
        rig.advance(2)
        assert learn(rig, known)
        assert known.size == 10


def test_it_learns_no_more_than_is_in_the_window_and_the_bound(tmp_path: Path) -> None:
    with Rig(tmp_path, segment_bytes=1 << 16) as rig:
        fill(rig, range(1000))
        rig.advance(11)
        fill(rig, range(1000, 1300))
        known = window()
        learn(rig, known)
        assert known.size == 300
        some = window()
        learn(rig, some, 33_000)
        assert 100 < some.size < 400


def test_another_log_of_the_name_is_another_one(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        fill(rig, range(10))
        known = window()
        learn(rig, known)
        rig.engine.delete_log("t")
        fill(rig, range(5))
        learn(rig, known)
        assert known.size == 5
