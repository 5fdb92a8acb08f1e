"""Which mapping a subject takes, and what becomes of weights."""

from __future__ import annotations

import pytest

from broker.protocols.nats.accounts.mapping import Mapper
from broker.protocols.nats.accounts.placeholders import MappingError
from broker.protocols.nats.accounts.transform import Transform
from broker.protocols.nats.settings import Destination, Mapping

COUNT = 400


def one(source: str, *to: tuple[str, int] | tuple[str, int, str]) -> Mapping:
    return Mapping(source, tuple(Destination(*way) for way in to))


def seen(mapper: Mapper, subject: bytes) -> set[bytes | None]:
    return {mapper(subject)[0] for _ in range(COUNT)}


def test_literals_win_and_patterns_keep_their_order() -> None:
    mapper = Mapper(
        (one("a.>", ("first.>", 100)), one("a.*", ("second.$1", 100)), one("a.b", ("third", 100)))
    )
    assert mapper(b"a.b") == (b"third", False)
    assert mapper(b"a.c") == (b"first.c", False)
    assert mapper(b"b") == (b"b", False)
    assert sorted(mapper.sources) == [b"a.*", b"a.>", b"a.b"]


def test_trap_27_mappings_do_not_chain() -> None:
    mapper = Mapper((one("a", ("b", 100)), one("b", ("c", 100))))
    assert mapper(b"a") == (b"b", False)


def test_a_later_mapping_of_the_same_source_replaces_the_first() -> None:
    assert Mapper((one("a", ("b", 100)), one("a", ("c", 100))))(b"a") == (b"c", False)


def test_the_rest_of_the_weights_stays() -> None:
    mapper = Mapper((one("a.*", ("b.$1", 50)),))
    assert seen(mapper, b"a.1") == {b"b.1", b"a.1"}
    assert mapper(b"a.1")[1]


def test_trap_28_a_listed_source_loses_the_rest() -> None:
    assert seen(Mapper((one("a", ("a", 50)),)), b"a") == {b"a", None}
    assert Mapper((one("a", ("a", 0)),))(b"a") == (None, False)


def test_no_weight_is_no_share() -> None:
    assert Mapper((one("a", ("b", 0)),))(b"a") == (b"a", False)
    assert Mapper((one("a", ("b", 0), ("c", 100)),))(b"a") == (b"c", False)


def test_destinations_of_our_cluster_come_before_those_of_none() -> None:
    mapping = one("a", ("b", 100), ("c", 100, "EAST"), ("d", 40, "WEST"), ("e", 60, "WEST"))
    assert seen(Mapper((mapping,)), b"a") == {b"b"}
    assert seen(Mapper((mapping,), "EAST"), b"a") == {b"c"}
    assert seen(Mapper((mapping,), "WEST"), b"a") == {b"d", b"e"}
    assert seen(Mapper((mapping,), "NORTH"), b"a") == {b"b"}


def test_only_destinations_of_clusters() -> None:
    assert Mapper((one("a", ("c", 100, "EAST")),))(b"a") == (b"a", False)


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        (one("a", ("b", 50), ("b", 50)), 'duplicate entry for "b"'),
        (one("a", ("b", 50), ("b", 50, "EAST")), 'duplicate entry for "b"'),
        (one("a", ("b", 101)), "individual weights need to be <= 100"),
        (one("a", ("b", 60), ("c", 50)), "total weight needs to be <= 100"),
        (one("a", ("", 100)), "invalid mapping destination: invalid transform"),
        (one("", ("b", 100)), "invalid subject"),
        (
            one("a.*", ("{{partition(2147483648,1)}}", 100)),
            (
                "invalid mapping destination: function argument is invalid or in the wrong format "
                "in {{partition(2147483648,1)}}"
            ),
        ),
    ],
)
def test_refused(mapping: Mapping, why: str) -> None:
    with pytest.raises(MappingError) as refusal:
        Mapper((mapping,))
    assert str(refusal.value) == why


def test_random_numbers_are_drawn_for_each_message() -> None:
    mapper = Mapper((one("a", ("r.{{random(3)}}", 100)),))
    drawn = {mapper(b"a") for _ in range(200)}
    assert drawn == {(b"r.0", True), (b"r.1", True), (b"r.2", True)}


def test_partitions_of_whole_subjects() -> None:
    mapper = Mapper((one("m.>", ("p.{{partition(9)}}.>", 100)),))
    assert mapper(b"m5.a.b") == (b"m5.a.b", False)
    assert len({mapper(b"m.%d" % n)[0].split(b".")[1] for n in range(200)}) == 9
    assert Mapper((one("m2", ("x.{{partition(7)}}", 100)),))(b"m2") == (b"x.2", False)


def test_a_result_without_room_is_lost() -> None:
    mapper = Mapper((one("*", ("{{sliceFromLeft(1,1)}}", 100)),))
    assert mapper(b"x" * 0x8000) == (b".".join([b"x"] * 0x8000), False)
    assert mapper(b"x" * 0x8001) == (None, False)


def test_a_thousand_literals() -> None:
    mapper = Mapper(tuple(one(f"from.{i}", (f"to.{i}", 100)) for i in range(1000)))
    for i in range(1000):
        assert mapper(b"from.%d" % i) == (b"to.%d" % i, False)
    assert mapper(b"from.1000") == (b"from.1000", False)


@pytest.mark.parametrize(
    ("source", "to", "subject"),
    [("a.*.*", "b.$2.$1", b"a.x"), ("a.*.>", "b.$1.>", b"a.x"), ("a.*", "b.$1", b"")],
)
def test_a_subject_that_is_too_short(source: str, to: str, subject: bytes) -> None:
    assert Transform(source, to)(subject) is None


@pytest.mark.parametrize(
    ("source", "to", "why"),
    [
        ("a.*", "b.{{partition(3,1)}}", "the only mapping function allowed for import transforms"),
        ("a.*.*", "b.$1", "not using all of the token wildcard(s) in b.$1"),
        ("a.*", "b.{{left(1,2)}}", "the only mapping function allowed for import transforms"),
    ],
)
def test_imports_must_be_reversible(source: str, to: str, why: str) -> None:
    with pytest.raises(MappingError) as refusal:
        Transform(source, to, strict=True)
    assert why in str(refusal.value)
    assert str(refusal.value).startswith("invalid mapping destination: ")


@pytest.mark.parametrize(
    ("to", "result"),
    [("{{left(1,2)}}", b"ab"), ("{{Right(1,2)}}", b"de"), ("{{left(1,9)}}", b"abcde")],
)
def test_the_ends_of_a_token(to: str, result: bytes) -> None:
    assert Transform("*", to)(b"abcde") == result
