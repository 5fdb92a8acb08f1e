from __future__ import annotations

from broker.routing.owners import SubjectOwners


def test_only_owners_that_may_overlap_are_found() -> None:
    owners = SubjectOwners[str]()
    for index in range(100):
        owners.put(f"S{index}", [b"s.%d.*" % index, b"$t.%d" % index])
    owners.put("wide", [b"s.*.x"])
    assert sorted(owners.near([b"s.5.*"])) == ["S5", "wide"]
    assert list(owners.near([b"$t.5"])) == ["S5"]
    assert len({*owners.near([b"$t.>"])}) == 100
    assert len({*owners.near([b"*.5"])}) == 101
    for index in range(100):
        owners.remove(f"S{index}")
    assert list(owners.near([b"s.>"])) == ["wide"]
    assert not list(owners.near([b"$t.>"]))


def test_subjects_that_begin_alike_are_looked_up_once() -> None:
    owners = SubjectOwners[str]()
    for index in range(100):
        owners.put(f"S{index}", [b"s.%d.*" % index])
    assert len(list(owners.near([b"s.>", b"s.*.a", b"s.5.*", b"s.6"]))) == 100
