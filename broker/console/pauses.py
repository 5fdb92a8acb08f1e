"""Long loops in steps, so that other tasks of the loop run in between.

This is a separate module because both the list of topics and the handlers use it.
"""

from __future__ import annotations

from broker.console import limits
from broker.runtime import pauses


class Pauses(pauses.Pauses):
    """Lets other tasks run during a loop over very many rows. The time is not read for each row,
    because that would take too long."""

    def __init__(self) -> None:
        super().__init__(limits.CONSOLE_STEP)
        self._steps = 0

    def is_due(self) -> bool:
        """Whether the task has run long enough. Called for each row; reads the time after many."""
        self._steps += 1
        return self._steps % limits.CONSOLE_STEP_ROWS == 0 and self.is_step_over()
