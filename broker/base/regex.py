"""Regular expressions in Go's syntax, in time linear in the text, with Google's RE2.

Auth servers of NSQ and readers of the bulk API send patterns. RE2 never backtracks, so no pattern
takes long, and MEMORY_MAX limits the memory of a compiled one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import re2

LENGTH_MAX: Final = 1_024  # characters of a pattern
MEMORY_MAX: Final = 128 << 10  # bytes of a compiled pattern with its automaton
REMEMBERED: Final = 128  # compiled patterns: one auth server sends the same to all its clients
# RE2 in C++ accepts one escape that Go's regexp refuses: \C, any byte. Quoted text may have it.
_BYTE: Final = re.compile(r"\\Q.*?(?:\\E|$)|\\C|\\.", re.DOTALL)


class PatternError(ValueError):
    """An invalid pattern, or one that is too large."""


class Pattern:
    """A compiled pattern. PatternError: Go would refuse it, or it is too large."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise PatternError("too long")
        self._compiled = _compile(text)

    @property
    def size(self) -> int:
        """The number of its instructions."""
        return int(self._compiled.programsize)

    def search(self, text: str) -> bool:
        """Whether it matches somewhere in the text."""
        return self._compiled.search(text) is not None

    def fullmatch(self, text: str) -> bool:
        """Whether it matches the whole text."""
        return self._compiled.fullmatch(text) is not None


@lru_cache(maxsize=REMEMBERED)
def _compile(text: str) -> re2._Regexp:
    import re2  # loaded only when patterns are used

    options = re2.Options()
    options.log_errors = False  # to standard error
    options.never_capture = True
    options.max_mem = MEMORY_MAX
    if any(found.group() == r"\C" for found in _BYTE.finditer(text)):
        raise PatternError(r"invalid escape sequence: \C")
    try:
        return re2.compile(text, options)
    except re2.error as problem:
        (reason,) = problem.args
        raise PatternError(reason.decode("utf-8", "replace")) from None
    except UnicodeEncodeError:
        raise PatternError("invalid UTF-8") from None
