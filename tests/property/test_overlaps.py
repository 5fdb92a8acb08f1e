"""Which subjects overlap, against the comparison of each pair as nats-server does it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.protocols.nats.accounts import overlaps
from broker.protocols.nats.accounts.overlaps import PatternSet
from broker.protocols.nats.accounts.subjects import collide, has_wildcard, lies_within, raw
from broker.routing.owners import SubjectOwners

TOKENS = st.sampled_from(["a", "b", "*", "*a", ">a", "a*", "$x"])
SUBJECTS = st.builds(
    lambda tokens, tail: ".".join([*tokens, ">"] if tail or not tokens else tokens),
    st.lists(TOKENS, max_size=4),
    st.booleans(),
)
LISTS = st.lists(SUBJECTS, max_size=4) | st.lists(SUBJECTS, min_size=9, max_size=30)
ANY = SUBJECTS | st.text("ab.*>", max_size=8)


def do_collide(one: str, other: str) -> bool:
    """server/sublist.go, SubjectsCollide."""
    if one == other:
        return True
    if not has_wildcard(one):
        return has_wildcard(other) and lies_within(one, other)
    if not has_wildcard(other):
        return lies_within(other, one)
    first, second = one.split("."), other.split(".")
    if len(first) != len(second) and ">" not in min(first, second, key=len):
        return False
    return all(
        mine[:1] in {"*", ">"} or yours[:1] in {"*", ">"} or mine == yours
        for mine, yours in zip(first, second, strict=False)
    )


@settings(max_examples=1000)
@given(ANY, ANY)
def test_pairs(one: str, other: str) -> None:
    assert collide(one, other) == do_collide(one, other)


@settings(max_examples=500)
@given(LISTS, SUBJECTS)
def test_sets(patterns: list[str], subject: str) -> None:
    found = PatternSet(patterns)
    pairs = [(i, j) for i in range(len(patterns)) for j in range(len(patterns)) if i != j]
    assert found.has_overlaps() == any(do_collide(patterns[i], patterns[j]) for i, j in pairs)
    assert found.has_subsets() == any(
        patterns[i] == patterns[j]
        or (has_wildcard(patterns[j]) and lies_within(patterns[i], patterns[j]))
        for i, j in pairs
    )
    met = [pattern for pattern in patterns if do_collide(pattern, subject)]
    assert found.overlaps(subject) == bool(met)
    for among in range(len(patterns) + 1):
        first = next((p for p in patterns[:among] if do_collide(p, subject)), None)
        assert found.first_overlap(subject, among) == first


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(SUBJECTS, max_size=4))),
    st.lists(SUBJECTS, max_size=3),
)
def test_owners(changes: list[tuple[int, list[str]]], wanted: list[str]) -> None:
    owners, subjects_of = SubjectOwners[str](), dict[str, list[str]]()
    for number, subjects in changes:
        name = str(number)
        if subjects:
            owners.put(name, map(raw, subjects))
            subjects_of[name] = subjects
        else:
            owners.remove(name)
            subjects_of.pop(name, None)
    met = {
        name
        for name, each in subjects_of.items()
        if any(do_collide(one, other) for one in each for other in wanted)
    }
    assert met <= set(owners.near(map(raw, wanted))) <= subjects_of.keys()


@pytest.mark.parametrize("form", ["t.{0}.*", "*.a{0}", "t.{0}.*.>", "t.{0}"])
def test_a_set_is_asked_once_for_each_token(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def counted(name: str) -> None:
        real = getattr(overlaps, name)

        def count(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            return real(*args)

        monkeypatch.setattr(overlaps, name, count)

    for name in ("_set_of", "_cached", "collide", "lies_within"):
        counted(name)
    patterns = [form.format(index) for index in range(3_000)]
    tokens = sum(len(pattern.split(".")) for pattern in patterns)
    found = PatternSet(patterns)
    assert not found.has_overlaps()
    assert not found.has_subsets()
    assert steps <= 12 * tokens
