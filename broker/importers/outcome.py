"""The common part of the results of imports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.base.problem import Problem


@dataclass(kw_only=True)
class ImportOutcome:
    """The result of one run."""

    problems: list[Problem] = field(default_factory=list)
    already: bool = False  # an earlier run has finished the import
    remembered: list[str] = field(default_factory=list)  # the problems of that run
    changed: bool = False  # a server has used the source since that run, or during this one

    @property
    def remarks(self) -> list[str]:
        """Everything that was not imported unchanged, one line each."""
        return self.remembered or [str(problem) for problem in self.problems]
