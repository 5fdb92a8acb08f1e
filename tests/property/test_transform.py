"""Transforms against one that is written as the words say it, with any subject and destination."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import assume, example, given
from hypothesis import strategies as st

from broker.protocols.nats.accounts.mapping import Mapper
from broker.protocols.nats.accounts.subjects import (
    collide,
    lies_within,
    numbered,
    reverse,
    unnumbered,
)
from broker.protocols.nats.accounts.transform import Transform
from broker.protocols.nats.settings import Destination, Mapping

TOKEN = st.sampled_from(["a", "b-c", "-d-", "12345", "äöü", "--", "longer-than-eight-bytes"])
SOURCE = st.lists(st.one_of(TOKEN, st.just("*"), st.just("*")), min_size=1, max_size=5)
INDEX = st.integers(1, 3)
SIZE = st.integers(-1, 6)


def call(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
    return st.tuples(*arguments).map(lambda given: f"{{{{{name}({','.join(map(str, given))})}}}}")


FUNCTION = st.one_of(
    INDEX.map("${}".format),
    call("wildcard", INDEX),
    call("Partition", st.integers(1, 100), INDEX),
    call("partition", st.integers(1, 100), INDEX, INDEX),
    call("SplitFromLeft", INDEX, SIZE),
    call("splitFromRight", INDEX, SIZE),
    call("sliceFromLeft", INDEX, SIZE),
    call("SliceFromRight", INDEX, SIZE),
    call("split", INDEX, st.sampled_from(["-", "--", "c", "3"])),
)
DESTINATION = st.lists(st.one_of(TOKEN, FUNCTION), min_size=1, max_size=5)


def fnv(data: bytes) -> int:
    h = 2166136261
    for byte in data:
        h = (h ^ byte) * 16777619 % 2**32
    return h


def parts(text: bytes, first: int, size: int) -> bytes:
    """The first so many bytes, then always `size`."""
    cuts = [0, *range(first or size, len(text), size), len(text)]
    return b".".join(text[a:b] for a, b in pairwise(cuts))


def naive_token(token: str, wild: list[bytes]) -> bytes:  # noqa: PLR0911 - a case each
    if token[0] == "$":
        return wild[int(token[1:]) - 1]
    if not token.startswith("{{"):
        return token.encode()
    name, _, rest = token.strip("{}").lower().partition("(")
    arguments = rest.rstrip(")").split(",")
    if name == "partition":
        key = b"".join(wild[int(a) - 1] for a in arguments[1:])
        return b"%d" % (fnv(key) % int(arguments[0]))
    text = wild[int(arguments[0]) - 1]
    if name == "wildcard":
        return text
    if name == "split":
        pieces = text.split(arguments[1].encode())
        out = b""
        for j, piece in enumerate(pieces):
            out += piece
            if j + 1 < len(pieces) and pieces[j + 1] and (j or piece):
                out += b"."
        return out
    size = int(arguments[1])
    if not 0 < size < len(text):
        return text
    left = name.endswith("left")
    if name.startswith("split"):
        return parts(text, size if left else len(text) - size, len(text))
    return parts(text, 0 if left else len(text) % size, size)


@given(SOURCE, DESTINATION, st.lists(TOKEN, min_size=5, max_size=5), st.lists(TOKEN, max_size=3))
@example(["*"], ["{{split(1,-)}}"], ["--"] * 5, [])
def test_any_transform(source: list[str], to: list[str], fill: list[str], rest: list[str]) -> None:
    wildcards = source.count("*")
    assume(all(int(number) <= wildcards for token in to for number in indexes(token)))
    assume(wildcards or not any(map(indexes, to)))
    tail = [">"] if rest else []
    subject = [fill[i] if token == "*" else token for i, token in enumerate(source)]
    wild = [s.encode() for s, token in zip(subject, source, strict=True) if token == "*"]
    transform = Transform(".".join(source + tail), ".".join(to + tail))
    expected = b".".join([naive_token(token, wild) for token in to] + [r.encode() for r in rest])
    assert transform(".".join(subject + rest).encode()) == expected


def indexes(token: str) -> list[str]:
    if token[0] == "$":
        return [token[1:]]
    if not token.startswith("{{"):
        return []
    name, _, rest = token.strip("{}").partition("(")
    arguments = rest.rstrip(")").split(",")
    return arguments[1:] if name.lower() == "partition" else arguments[:1]


@given(SOURCE, st.randoms())
def test_there_and_back(source: list[str], random: object) -> None:
    """What an import's transform does, its reverse undoes."""
    count = source.count("*")
    order = list(range(1, count + 1))
    random.shuffle(order)  # type: ignore[attr-defined]
    there = ".".join(["to", *(f"${number}" for number in order)])
    pattern, places = unnumbered(there)
    assert places == [f"${number}" for number in order]
    subject = b".".join(b"w%d" % i if t == "*" else t.encode() for i, t in enumerate(source))
    mapped = Transform(".".join(source), there, strict=True)(subject)
    assert mapped is not None
    assert lies_within(mapped.decode(), pattern)
    assert Transform(*reverse(".".join(source), there), strict=True)(mapped) == subject


PATTERN = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"]), ">"])
)
SUBJECTS = [
    ".".join(tokens)
    for tokens in (
        [(a,) for a in "abc"]
        + [(a, b) for a in "abc" for b in "abc"]
        + [(a, b, c) for a in "abc" for b in "abc" for c in "abc"]
        + [(a, b, c, d) for a in "abc" for b in "abc" for c in "ab" for d in "abc"]
        + [(a, b, c, d, "c") for a in "abc" for b in "abc" for c in "abc" for d in "abc"]
        + [(a, b, c, d, "c", "c") for a in "abc" for b in "abc" for c in "abc" for d in "abc"]
    )
]


def matched(pattern: str) -> set[str]:
    return {subject for subject in SUBJECTS if lies_within(subject, pattern)}


@given(PATTERN, PATTERN)
def test_relations_of_patterns(one: str, other: str) -> None:
    """Compared as the sets of subjects they stand for."""
    assert collide(one, other) == collide(other, one) == bool(matched(one) & matched(other))
    if lies_within(one, other):
        assert matched(one) <= matched(other)
    assert numbered("a.*.b.*.>") == "a.$1.b.$2.>"


@given(st.lists(st.integers(0, 100), min_size=1, max_size=4).filter(lambda w: sum(w) <= 100))
def test_shares(weights: list[int]) -> None:
    """Each destination gets about its share, and what lacks to 100 stays."""
    to = tuple(Destination(f"d{i}", weight) for i, weight in enumerate(weights))
    mapper = Mapper((Mapping("s", to),))
    count = 2_000
    seen: dict[bytes | None, int] = {}
    for _ in range(count):
        subject, _chance = mapper(b"s")
        seen[subject] = seen.get(subject, 0) + 1
    expected = {f"d{i}".encode(): weight for i, weight in enumerate(weights)}
    expected[b"s"] = 100 - sum(weights)
    for subject, weight in expected.items():
        share = seen.pop(subject, 0) * 100 / count
        assert abs(share - weight) <= 8
        assert weight or not share
    assert not seen
