"""Numbers of the process: exit codes, garbage collection, open files."""

from __future__ import annotations

from typing import Final

# Allocations that survive a young collection before the next one. CPython's 700 fits programs that
# make many small objects; ours makes few and long-lived ones, and a full collection stops the loop.
GC_THRESHOLD: Final = (50_000, 20, 50)

# Exit codes: 2 is what command lines use for wrong input, 128 + n what shells show for signal n.
EXIT_OK: Final = 0
EXIT_START_FAILED: Final = 1
EXIT_STOP_FAILED: Final = 1  # something may not have been saved; the log says what
EXIT_TERMINATED: Final = 1  # nats-server ended by SIGTERM
EXIT_BAD_CONFIG: Final = 2
EXIT_PARTLY: Final = 3  # done, but for what could not be read
EXIT_SIGNAL_BASE: Final = 128
