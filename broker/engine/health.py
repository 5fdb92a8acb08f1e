"""Problems of the data folder: every lasting reason for an unhealthy answer, in one place.

A reason concerns one thing: a log, the file of a reader. It stays until that thing works
again or an operator has dealt with it. A log that refuses appends for now is not listed here: its
`last_error` says so, and goes by itself.
"""

from __future__ import annotations

from typing import Final

from broker.base.values import dataclass

# Kinds: what a problem concerns, and what its name means. Layers above the engine have their own.
LOG: Final = "log"  # quarantined, see Engine.quarantined; the name of the log
RECORDS: Final = "records of log"  # some are unreadable and are skipped; the name of the log
FILES: Final = "files of log"  # one cannot be opened now, readers wait; the name of the log


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem."""

    kind: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.reason}"


class Health:
    """All lasting problems, oldest first; at most one for each kind and name."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}

    def add(self, kind: str, name: str, reason: str) -> None:
        """Add a problem; a new reason replaces an older one."""
        self._problems[kind, name] = Problem(kind, name, reason)

    def remove(self, kind: str, name: str) -> None:
        """Remove a problem that is solved."""
        self._problems.pop((kind, name), None)

    def problems(self) -> list[Problem]:
        """All problems."""
        return list(self._problems.values())

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such a problem."""
        return (kind, name) in self._problems

    def count(self, kind: str) -> int:
        """The number of problems of a kind."""
        return sum(problem.kind == kind for problem in self._problems.values())

    def first(self) -> str | None:
        """The oldest problem and the number of others, as a text; None: no problem."""
        for problem in self._problems.values():
            others = len(self._problems) - 1
            return f"{problem} (and {others} more)" if others else str(problem)
        return None
