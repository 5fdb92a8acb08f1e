"""Values are what the standard library's dataclasses are."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import typing
from dataclasses import field
from typing import Any

import pytest

from broker.base.values import NamedTuple, dataclass


@dataclass(frozen=True, slots=True)
class Login:
    """A value with a secret."""

    name: str
    password: str = field(default="", repr=False)
    seen: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Guest(Login):
    """One that inherits fields."""

    days: int = 1


@dataclass(slots=True)
class Counters:
    """Numbers that change."""

    received: int = 0
    sent: int = 0


@dataclass(frozen=True)
class Empty:
    """No fields at all."""


@dataclass(frozen=True)
class Named:
    """Methods of its own stay."""

    name: str

    def __repr__(self) -> str:
        return "named"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named)

    def __hash__(self) -> int:
        return 1


def test_equal_values_are_equal_and_have_one_hash() -> None:
    one, same = Login("a", "secret"), Login("a", "secret", seen=2)
    assert one == same
    assert len({one, same}) == 1
    assert one != Login("a", "other")
    assert Guest("a") == Guest("a")
    assert Guest("a", days=2) != Guest("a")
    assert Empty() == Empty()


def test_the_first_values_are_like_the_later_ones() -> None:
    """The first ones are made by an `__init__` that is not compiled."""

    @dataclass(frozen=True, slots=True)
    class Made:
        name: str
        parts: list[str] = field(default_factory=list)
        loud: bool = False

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError(self.parts)

    for _ in range(4):
        one = Made(name="a", loud=True)
        assert (one.name, one.parts, one.loud) == ("a", [], True)
        assert one.parts is not Made(name="a").parts
        with pytest.raises(ValueError, match="b"):
            Made(name="", parts=["b"])


@pytest.mark.parametrize("named", [{}, {"name": "a", "nick": "b"}])
def test_wrong_arguments(named: dict[str, str]) -> None:
    @dataclass(frozen=True, slots=True)
    class Made:
        name: str

    for _ in range(4):
        with pytest.raises(TypeError, match=r"name|nick"):
            Made(**named)


def test_values_of_two_classes_differ() -> None:
    assert Login("a") != Guest("a")
    assert Login("a") != ("a", "")


def test_secrets_do_not_show() -> None:
    assert repr(Guest("a", "secret")) == "Guest(name='a', seen=0, days=1)"
    assert repr(Empty()) == "Empty()"


def test_what_changes_has_no_hash() -> None:
    counters = Counters()
    counters.sent += 1
    assert counters == Counters(sent=1)
    with pytest.raises(TypeError):
        hash(counters)


@dataclass(frozen=True, slots=True)
class Made:
    """With what comes after its fields are set."""

    parts: list[int] = field(default_factory=list)
    total: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.parts))


def test_frozen_values_do_not_change() -> None:
    login = Guest("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        login.name = "b"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del login.days
    assert login == Guest("a")


def test_defaults() -> None:
    assert Made([1, 2]).total == 3
    one, other = Made(), Made()
    assert one.parts == []
    assert one.parts is not other.parts
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Login()  # type: ignore[call-arg]


def test_methods_of_its_own_stay() -> None:
    assert (repr(Named("a")), hash(Named("a"))) == ("named", 1)
    assert Named("a") == Named("b")


def test_the_standard_functions_know_them() -> None:
    guest = Guest("a", "secret")
    assert [each.name for each in dataclasses.fields(guest)] == ["name", "password", "seen", "days"]
    assert dataclasses.replace(guest, days=3) == Guest("a", "secret", days=3)
    assert dataclasses.asdict(Counters(1, 2)) == {"received": 1, "sent": 2}
    assert copy.copy(guest) == pickle.loads(pickle.dumps(guest)) == guest
    assert not hasattr(guest, "__dict__")


class Place(NamedTuple):
    """A tuple with names."""

    file: str
    line: int = 1

    @property
    def shown(self) -> str:
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return self.shown


class StandardPlace(typing.NamedTuple):
    """A tuple with names."""

    file: str
    line: int = 1

    @property
    def shown(self) -> str:
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return self.shown


def test_named_tuples_are_those_of_the_standard_library() -> None:
    for name in (
        "_fields",
        "_field_defaults",
        "__annotations__",
        "__doc__",
        "__module__",
        "__mro__",
    ):
        ours, theirs = getattr(Place, name), getattr(StandardPlace, name)
        if name == "__mro__":
            ours, theirs = ours[1:], theirs[1:]
        if name == "__annotations__":
            theirs = {key: value.__forward_arg__ for key, value in theirs.items()}
        assert ours == theirs, name
    place = Place("a", line=2)
    assert place == ("a", 2) == StandardPlace("a", 2)
    assert (place.shown, str(place)) == ("a:2", "a:2")
    assert repr(place) == "Place(file='a', line=2)"
    assert Place("a") == Place("a", 1)
    assert place._replace(line=3)._asdict() == {"file": "a", "line": 3}
    assert isinstance(place, tuple)
    assert pickle.loads(pickle.dumps(place)) == copy.deepcopy(place) == place
    assert type(copy.copy(place)) is Place
    for wrong in ((), ("a", 1, 2)):
        with pytest.raises(TypeError):
            Place(*wrong)


@pytest.mark.parametrize("calls", [0, 100])
def test_positions_and_names_are_given_as_to_any_function(calls: int) -> None:
    """Also after so many instances that `__init__` has been compiled."""

    @dataclass(frozen=True)
    class Point:
        x: int
        y: int = 0

    for number in range(calls):
        assert Point(number).x == number
    assert (Point(1, 2).x, Point(1, 2).y) == (1, 2)
    assert (Point(1, y=2).y, Point(1).y) == (2, 0)
    kind: Any = Point
    wrong: list[tuple[tuple[int, ...], dict[str, int]]] = [
        ((1, 2, 3), {}), ((1,), {"x": 1}), ((), {}), ((1,), {"z": 2}),
    ]  # fmt: skip
    for args, named in wrong:
        with pytest.raises(TypeError):
            kind(*args, **named)
