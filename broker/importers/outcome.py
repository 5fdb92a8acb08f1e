"""What an import reports, whatever it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.base.problem import Problem


@dataclass(kw_only=True)
class ImportOutcome:
    """The result of one run."""

    problems: list[Problem] = field(default_factory=list)
    already: bool = False  # an earlier run had finished, with these problems:
    remembered: list[str] = field(default_factory=list)
    changed: bool = False  # a server has used the source since then, or during the import

    @property
    def remarks(self) -> list[str]:
        """Everything that was not imported as it was, one line each."""
        return self.remembered or [str(problem) for problem in self.problems]
