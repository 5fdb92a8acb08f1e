"""Classes of plain values: `dataclass` and `NamedTuple`, made in a part of the time.

The standard decorator compiles up to seven methods of each class when its module is imported, about
half a millisecond. A start makes some eighty such classes, so that was a quarter of its processor
time. This one compiles `__init__` alone, when a few instances of the class were made, which for
most classes is never; the other methods are the same functions for all classes.

typing.NamedTuple parses each annotation, which takes two thirds of its time; this one does not.

What is made is as in the standard library, which `field`, `fields` and `replace` come from.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from dataclasses import dataclass
    from typing import NamedTuple

__all__ = ["NamedTuple", "dataclass"]
# Calls before `__init__` is compiled: an uncompiled call takes 5 us longer, and compiling takes 200
# us.
_PLAIN_CALLS = 20

if not TYPE_CHECKING:

    def dataclass(*, frozen: bool = False, slots: bool = False) -> Callable[[type], type]:
        """Same as dataclasses.dataclass, with these parameters only."""

        def make(kind: type) -> type:
            own = vars(kind)
            made = _with_fields(kind, slots=slots)
            if "__init__" not in own:
                made.__init__ = _init(made, frozen=frozen)
            if "__repr__" not in own:
                made.__repr__ = _repr
            if "__eq__" not in own:
                made._compared = staticmethod(_getter(made))
                made.__eq__ = _eq
                made.__hash__ = _hash if frozen else None
            if frozen:
                made.__setattr__ = made.__delattr__ = _refuse
                if slots:
                    made.__getstate__, made.__setstate__ = _state, _set_state
            return made

        return make

    class _NamedTupleMeta(type):
        def __new__(cls, name: str, bases: tuple[type, ...], own: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, own)
            annotations = own.get("__annotations__", {})
            given = [field in own for field in annotations]
            if len(bases) > 1 or given != sorted(given):
                raise TypeError("one base class, and fields with defaults come last")
            made = collections.namedtuple(
                name,
                annotations,
                defaults=[own[field] for field in annotations if field in own],
                module=own["__module__"],
            )
            made.__annotations__ = made.__new__.__annotations__ = annotations
            for key, value in own.items():
                if key not in annotations and key != "__module__":
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_NamedTupleMeta):
        """Same as typing.NamedTuple, as a base class."""


def _with_fields(kind: Any, *, slots: bool) -> Any:
    """The class with its fields. Annotations are texts, which the decorator would search for the
    names of special ones: it gets none, and the fields get theirs afterwards. For a class without
    a docstring it would make one of a signature, for which it would parse that of `object`."""
    if not kind.__doc__:
        kind.__doc__ = kind.__name__
    annotations = vars(kind).get("__annotations__", {})
    kind.__annotations__ = {
        name: text if "ClassVar" in text else object for name, text in annotations.items()
    }
    made = dataclasses.dataclass(init=False, eq=False, repr=False, slots=slots)(kind)
    made.__annotations__ = annotations
    for field in dataclasses.fields(made):
        field.type = annotations.get(field.name, field.type)
    return made


def _init(kind: Any, *, frozen: bool) -> Callable[..., None]:
    """An `__init__` that replaces itself by a compiled one once it has been called a few times: of
    most sections of a configuration there are only its defaults and what a server uses."""
    calls = itertools.count()

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807 - what it is
        if next(calls) < _PLAIN_CALLS and _fill(kind, self, args, named):
            return
        kind.__init__ = compiled = _compiled(kind, frozen=frozen)
        compiled(self, *args, **named)

    __init__.__qualname__ = f"{kind.__qualname__}.__init__"
    return __init__


def _fill(kind: Any, self: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Set the fields of this class, as its `__init__` would. False: the arguments are wrong."""
    fields = dataclasses.fields(kind)
    names = [field.name for field in fields]
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or not named.keys() <= set(names) - given.keys():
        return False
    named = given | named
    for field in fields:
        if field.name in named:
            value = named[field.name]
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        else:
            return False
        object.__setattr__(self, field.name, value)
    if hasattr(self, "__post_init__"):
        self.__post_init__()
    return True


def _compiled(kind: type, *, frozen: bool) -> Callable[..., None]:
    """`__init__` with the fields as its parameters; a frozen class refuses plain assignments."""
    known: dict[str, Any] = {"MISSING": MISSING, "set_": object.__setattr__}
    parameters, lines = ["self"], []
    for field in dataclasses.fields(kind):
        name = value = field.name
        known[f"make_{name}"], known[f"default_{name}"] = field.default_factory, field.default
        if field.default_factory is not MISSING:
            parameters.append(f"{name}=MISSING")
            value = f"make_{name}() if {name} is MISSING else {name}"
        elif field.default is not MISSING:
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        lines.append(
            f"    set_(self, {name!r}, {value})" if frozen else f"    self.{name} = {value}"
        )
    if hasattr(kind, "__post_init__"):
        lines.append("    self.__post_init__()")
    text = "\n".join([f"def __init__({', '.join(parameters)}):", *lines, "    return None"])
    exec(text, known)  # noqa: S102 - names of fields, as dataclasses itself does
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    return init


def _getter(kind: type) -> Callable[[Any], Any]:
    names = [field.name for field in dataclasses.fields(kind) if field.compare]
    return attrgetter(*names) if names else lambda _value: ()


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{self.__class__.__qualname__}({inner})"


def _refuse(_self: Any, name: str, _value: Any = None) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in _names(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(_names(self), state, strict=True):
        object.__setattr__(self, name, value)


def _names(value: Any) -> Iterator[str]:
    return (field.name for field in dataclasses.fields(value))
