"""Regular expressions of modules, compiled at their first use.

Python compiles an expression in about 0.2 ms, and most of those that a start would compile are for
settings and requests that few brokers have. Here it costs nothing until a method is called.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from typing import AnyStr


class _Pattern:
    """A pattern with the methods of re.Pattern, each looked up at its first use."""

    def __init__(self, given: Any, flags: int) -> None:
        self._given = given
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._given, self._flags), name)  # `re` caches compiled patterns
        setattr(self, name, found)
        return found


def lazy_pattern(given: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Same as re.compile, but an invalid expression raises at its first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(given, flags))
