"""What is wrong with the data folder: every lasting reason for an unhealthy answer, in one place.

A reason concerns one thing: a log, the file of a reader. It stays until that thing works
again or an operator has dealt with it. A log that refuses appends for now is not listed here: its
`last_error` says so, and goes by itself.
"""

from __future__ import annotations

from typing import Final

from broker.base.values import dataclass

# Kinds: what a reason concerns, and what its name is. Those above the engine have their own.
LOG: Final = "log"  # quarantined, see Engine.quarantined; the name of the log
RECORDS: Final = "records of log"  # some do not read and are passed over; the name of the log


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    kind: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.reason}"


class Health:
    """All lasting problems, the oldest first; at most one for each kind and name."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, str], Problem] = {}

    def add(self, kind: str, name: str, reason: str) -> None:
        """This is wrong from now on; a new reason takes the place of an older one."""
        self._problems[kind, name] = Problem(kind, name, reason)

    def remove(self, kind: str, name: str) -> None:
        """All is well with it again."""
        self._problems.pop((kind, name), None)

    def problems(self) -> list[Problem]:
        """Everything that is wrong."""
        return list(self._problems.values())

    def has(self, kind: str, name: str) -> bool:
        """Whether something is wrong with it."""
        return (kind, name) in self._problems

    def count(self, kind: str) -> int:
        """How many things of a kind are wrong."""
        return sum(problem.kind == kind for problem in self._problems.values())

    def first(self) -> str | None:
        """The oldest problem and how many others there are, in words; None: all is well."""
        for problem in self._problems.values():
            others = len(self._problems) - 1
            return f"{problem} (and {others} more)" if others else str(problem)
        return None
