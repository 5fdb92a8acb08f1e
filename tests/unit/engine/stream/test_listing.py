"""Lists of subjects that change while they are copied."""

from __future__ import annotations

from support.native.subjects import Subjects

from broker.engine.stream.listing import SubjectList
from broker.engine.stream.subjects import SubjectIndex

AT_ONCE = 1 << 13  # subjects that are copied at a time


def copied(subjects: SubjectList) -> list[tuple[str, int]]:
    """The list after the rest of it is copied."""
    while subjects.copy_more():
        pass
    subjects.sort(0, subjects.size)
    return subjects.part(0, subjects.size)


def test_many_subjects_are_copied_in_parts(index: SubjectIndex, at: Subjects) -> None:
    at.add_many(b"s.", 1, 3 * AT_ONCE, 3 * AT_ONCE)
    subjects = SubjectList(index)
    assert subjects.copy_more()
    assert subjects.size <= AT_ONCE
    found = copied(subjects)
    assert found == sorted(found)
    assert len(found) == 3 * AT_ONCE


def test_an_id_of_another_subject_is_not_listed(index: SubjectIndex, at: Subjects) -> None:
    """Ids are used again: the filter is asked about each of them when it is copied."""
    at.add_many(b"a.", 1, 2 * AT_ONCE, 2 * AT_ONCE)
    among = index.filter(["a.*"])
    subjects = SubjectList(index, among)
    assert subjects.copy_more()
    at.drop_below(2 * AT_ONCE)
    at.add_many(b"b.", index.next_seq, 2 * AT_ONCE, 2 * AT_ONCE)
    names = [name for name, _ in copied(subjects)]
    assert len(names) >= AT_ONCE
    assert all(name.startswith("a.") for name in names)


def test_a_subject_with_another_id_is_listed_once(index: SubjectIndex, at: Subjects) -> None:
    """Its last message was removed after it was copied; the next one gave it a later id."""
    names = [b"s.%05d" % number for number in range(3 * AT_ONCE)]
    for seq, name in enumerate(names, 1):
        at.add(name, seq)
    subjects = SubjectList(index)
    assert subjects.copy_more()
    for seq in (1, len(names)):  # the id that is free last is used first
        assert at.kill(seq)
    at.add(names[0], index.next_seq)
    while subjects.copy_more():
        pass
    assert subjects.size == len(names)
    subjects.sort(0, 100)
    assert subjects.size == len(names) - 1
    found = [name.encode() for name, _ in subjects.part(0, subjects.size)]
    assert found == names[:-1]


def test_the_index_is_cleared_meanwhile(index: SubjectIndex, at: Subjects) -> None:
    at.add_many(b"a.", 1, 2 * AT_ONCE, 2 * AT_ONCE)
    subjects = SubjectList(index)
    assert subjects.copy_more()
    size = subjects.size
    at.clear()
    assert len(copied(subjects)) == size
