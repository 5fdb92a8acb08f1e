"""Numbers of the process: exit codes, garbage collection, open files."""

from __future__ import annotations

from typing import Final

# Allocations that survive a young collection before the next one. CPython's 700 fits programs that
# make many small objects; ours makes few and long-lived ones, and a full collection stops the loop.
GC_THRESHOLD: Final = (50_000, 20, 50)

# Memory that a burst has left free goes back to the system when so much has come since the last
# time, and so large a share (1 / TRIM_SHARE) of all. The next look comes after TRIM_REST times as
# long as one took, because the loop may have waited meanwhile.
TRIM_PERIOD_S: Final = 30.0
TRIM_BYTES_MIN: Final = 1 << 20
TRIM_SHARE: Final = 32
TRIM_REST: Final = 2_000
# One heap for the loop and one that all other threads share: they allocate little.
ARENAS_MAX: Final = 2

# Exit codes: 2 is what command lines use for wrong input, 128 + n what shells show for signal n.
EXIT_OK: Final = 0
EXIT_START_FAILED: Final = 1
EXIT_STOP_FAILED: Final = 1  # something may not have been saved; the log says what
EXIT_TERMINATED: Final = 1  # ended by SIGTERM, where the original's code is this one
EXIT_BAD_CONFIG: Final = 2
EXIT_PARTLY: Final = 3  # done, but for what could not be read
EXIT_SIGNAL_BASE: Final = 128
