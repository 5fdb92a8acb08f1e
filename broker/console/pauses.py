"""Long loops in steps, so that other tasks of the loop run in between.

It is separate because the list of topics, which handlers get in their context, needs it too.
"""

from __future__ import annotations

from broker.console import limits
from broker.runtime import pauses


class Pauses(pauses.Pauses):
    """Lets other tasks run while one loops over very many rows, for each of which a look at the
    clock would take too long."""

    def __init__(self) -> None:
        super().__init__(limits.CONSOLE_STEP)
        self._steps = 0

    def is_due(self) -> bool:
        """Whether the task has run long enough; called for each row, `is_over` after many rows."""
        self._steps += 1
        return self._steps % limits.CONSOLE_STEP_ROWS == 0 and self.is_over()
