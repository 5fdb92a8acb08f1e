"""Classes of plain values: `dataclass`, made in a fifth of the time.

The standard decorator compiles up to seven methods of each class when its module is imported, about
half a millisecond. A start makes some eighty such classes, so that was a quarter of its processor
time. This one compiles `__init__` alone; the other methods are the same functions for all classes.

`frozen` is what mypy checks: an assignment is a type error, and instances can be hashed, but
nothing looks at assignments at run time. Everything else is as in the standard library, which
`field`, `fields` and `replace` come from.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass

__all__ = ["dataclass"]

if not TYPE_CHECKING:

    def dataclass(*, frozen: bool = False, slots: bool = False) -> Callable[[type], type]:
        """As dataclasses.dataclass, with these parameters alone."""

        def make(kind: type) -> type:
            made = dataclasses.dataclass(eq=False, repr=False, slots=slots)(kind)
            own = vars(kind)
            if "__repr__" not in own:
                made.__repr__ = _repr
            if "__eq__" not in own:
                made._compared = staticmethod(_getter(made))
                made.__eq__ = _eq
                made.__hash__ = _hash if frozen else None
            return made

        return make


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
