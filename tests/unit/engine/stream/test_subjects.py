"""What the index of subjects costs, and that it gives memory back."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from support.native.subjects import Subjects

from broker.engine.stream.subjects import SubjectIndex

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from broker.engine.stream.filter import Filter

CHUNK = 1 << 14
NAME = b"orders.europe.customer.no.%d"  # and a number: 32 bytes or fewer


def test_a_subject_costs_less_than_100_bytes(index: SubjectIndex, at: Subjects) -> None:
    subjects = 200_000
    at.add_many(NAME[:-2], 1, subjects, subjects)
    column = 4 * subjects
    assert index.size == subjects
    assert (index.memory - column) / subjects < 100


def test_a_message_costs_12_bytes(index: SubjectIndex, at: Subjects) -> None:
    at.add_many(b"one.", 1, 40 * CHUNK, 1)
    assert index.memory / (40 * CHUNK) < 12.5


def test_many_messages_of_many_subjects_fit(index: SubjectIndex, at: Subjects) -> None:
    """As 10 million messages of a million subjects in 200 MB."""
    at.add_many(NAME[:-2], 1, 1_000_000, 100_000, step=7919)
    assert (index.messages, index.size) == (1_000_000, 100_000)
    assert index.memory <= 20_500_000  # blocks of this size weigh more in a tenth of it


def test_gaps_and_dropped_messages_cost_nothing(index: SubjectIndex, at: Subjects) -> None:
    for i in range(100):
        at.add(b"far", 1 + i * 10**12)
    assert at.chunks == 100
    assert index.memory < 200_000
    at.add_many(b"s.", index.next_seq, 60 * CHUNK, 1000)
    assert at.drop_below(index.next_seq - 10) == 100 + 60 * CHUNK - 10
    assert at.chunks == 1
    assert index.messages == 10


def test_a_chunk_in_the_middle_goes_with_its_last_message(
    index: SubjectIndex, at: Subjects
) -> None:
    at.add(b"old", 1)
    at.add_many(b"s.", 2, 50 * CHUNK, 10)
    full = index.memory
    at.kill_many(2, 49 * CHUNK)
    assert at.chunks <= 3
    assert index.memory < full / 10
    assert index.first_seq == 1
    assert at.next_match(None, 2) == 49 * CHUNK + 2


def test_few_live_messages_in_a_chunk_cost_little(index: SubjectIndex, at: Subjects) -> None:
    """One key in 100 is not written again: 10,000 of a million messages stay, everywhere."""
    count = 60 * CHUNK
    at.add_many(b"k.", 1, count, 50_000)
    for seq in range(1, count + 1):
        if seq % 100:
            at.kill(seq)
    assert at.chunks == 61  # the last one is open
    assert index.memory < 60 * index.messages + 5_000_000
    kept = list(range(100, count + 1, 100))
    assert [at.next_match(None, seq) for seq in kept] == kept
    assert at.next_match(None, 101) == 200


def test_ids_and_names_of_gone_subjects_are_used_again(index: SubjectIndex, at: Subjects) -> None:
    """Messages over ever new subjects, of which the last 1000 stay."""
    sizes = []
    for i in range(60):
        at.add_many(b"ever.new.%d." % i, index.next_seq, 10_000, 10_000)
        at.drop_below(index.next_seq - 1000)
        sizes.append(index.memory)
    assert index.size == 1000
    assert at.ids <= 11_000
    assert max(sizes[10:]) <= 1.2 * sizes[10]


def test_filters_with_equal_subjects_are_one_object(index: SubjectIndex, at: Subjects) -> None:
    at.add_many(b"a.", 1, 100, 10)
    one = index.filter(["a.1", "a.2"])
    assert index.filter([b"a.2", b"a.1", "a.1"]) is one
    assert one is not None
    assert (one.total, one.size, one.subjects) == (20, 2, (b"a.1", b"a.2"))
    assert index.filter([]) is None
    assert index.filter(["a.1", ">"]) is None


def turn(coroutine: Coroutine[None, None, Filter | None]) -> Filter | None:
    """One turn of the loop; what is found, if it was the last one."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("Filter", end.value)
    return None


@pytest.mark.parametrize("shared", [False, True])
def test_a_filter_that_is_found_in_turns(index: SubjectIndex, at: Subjects, shared: bool) -> None:
    """Meanwhile subjects of all kinds come, go, and come back."""
    subjects = 200_000
    at.add_many(b"a.", 1, subjects, subjects)
    at.add_many(b"b.", index.next_seq, subjects, subjects)
    index.filter(["*.7"])  # a group that some subjects are in already
    finding = index.filter_in_turns(["a.*", "b.9"])
    turns, found = 1, turn(finding)
    while found is None:
        number = b"%d" % turns
        at.add(b"a." + number, index.next_seq)  # compared already
        at.add(b"a." + b"%d" % (subjects - turns), index.next_seq)  # still to be compared
        at.add(b"a.new." + number, index.next_seq)
        at.add(b"a.new" + number, index.next_seq)
        at.kill(10 + turns)
        at.kill(subjects - 10 - turns)
        at.kill(2 * subjects - 10 - turns)
        at.add(b"a.again" + number, index.next_seq)  # with the id of one that has gone
        at.add(b"c.again" + number, index.next_seq)
        if shared:
            assert index.filter(["b.9", "a.*"]) is not None
        found = turn(finding)
        turns += 1
    assert turns > 5
    again = index.filter(["a.*", "b.9", "not.there"])
    assert again is not None
    assert (found.total, found.size) == (again.total, again.size)
    assert [at.count_matching(one, 0) for one in (found, again)] == [found.total] * 2
    assert at.next_match(found, 12) == at.next_match(again, 12)
    assert index.filter(["a.*", "b.9"]) is index.filter(["b.9", "a.*"])


def test_a_filter_of_an_index_that_becomes_empty_meanwhile(
    index: SubjectIndex, at: Subjects
) -> None:
    at.add_many(b"a.", 1, 200_000, 200_000)
    finding = index.filter_in_turns(["a.*"])
    assert turn(finding) is None
    at.clear()
    at.add(b"a.1", index.next_seq)
    at.add(b"b.1", index.next_seq)
    while (found := turn(finding)) is None:
        pass
    assert (found.total, found.size) == (1, 1)


def test_a_star_inside_a_token_is_literal(index: SubjectIndex, at: Subjects) -> None:
    at.add(b"dev.1.sensor7", 1)
    at.add(b"dev.1.sensor*", 2)
    found = index.filter(["dev.*.sensor*"])
    assert found is not None
    assert (found.total, at.next_match(found, 0)) == (1, 2)


def test_invalid_filters_match_nothing(index: SubjectIndex, at: Subjects) -> None:
    at.add(b"a.b", 1)
    for subjects in (["a..b"], [".a"], ["a.>.b"], [""], ["a." + "x" * 70000]):
        found = index.filter(subjects)
        assert found is not None
        assert (found.total, at.next_match(found, 0), at.last_match(found)) == (0, 0, 0)


def test_released_filters_leave_no_groups(index: SubjectIndex, at: Subjects) -> None:
    at.add_many(b"a.", 1, 1000, 100)
    for i in range(50):
        for subjects in (["a.>"], ["a.*", "b"], [f"a.{i}"], [f"a.{i}", "*.1"]):
            index.filter([*subjects, f"x.{i}"])
    assert at.groups <= 100
    index.filter(["a.>"])  # compares all subjects: equal groups become one
    assert at.groups <= 20


def test_filters_outlive_their_index() -> None:
    index = SubjectIndex()
    Subjects(index).add_many(b"a.", 1, 10, 2)
    found = index.filter(["a.*"])
    del index
    assert found is not None
    assert found.total == 10


def test_seqs_must_rise_and_subjects_have_a_length(index: SubjectIndex, at: Subjects) -> None:
    at.add(b"a", 7)
    for subject, seq in ((b"a", 7), (b"a", 6), (b"", 8), (b"x" * 65536, 8)):
        with pytest.raises(ValueError, match="seqs rise"):
            at.add(subject, seq)
    at.add(b"x" * 65535, 8)
    assert at.subject_of(8) == b"x" * 65535
    assert index.messages == 2


def test_names_of_all_lengths(index: SubjectIndex, at: Subjects) -> None:
    """Cells of names have classes of sizes: neighbours of a boundary do not overlap."""
    lengths = sorted(
        {n + d for n in (8, 512, 640, 1024, 4096, 32768, 65520) for d in range(-9, 10)}
    )
    names = [bytes([97 + n % 26]) * n for n in lengths if n > 0]
    for round_ in range(3):
        for name in names:
            at.add(name + b".%d" % round_, index.next_seq)
        for seq, name in zip(
            range(index.next_seq - len(names), index.next_seq), names, strict=True
        ):
            assert at.subject_of(seq) == name + b".%d" % round_
        at.drop_below(index.next_seq - len(names) // 2)
