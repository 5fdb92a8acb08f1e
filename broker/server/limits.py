"""Limits of the process: exit codes, garbage collection, memory, checks."""

from __future__ import annotations

from typing import Final

# Allocations before the next young collection. CPython's 700 is for programs with many small
# objects; the broker has few and long-lived ones, and a full collection stops the loop.
GC_THRESHOLD: Final = (50_000, 20, 50)

# Memory that a burst has left free is returned to the system if it has grown by this much since the
# last time, and by this share (1 / TRIM_SHARE) of all. The next check is after TRIM_REST times the
# duration of the last one, because the loop may have waited for it.
TRIM_PERIOD_S: Final = 30.0
TRIM_BYTES_MIN: Final = 1 << 20
TRIM_SHARE: Final = 32
TRIM_REST: Final = 2_000
# One heap for the loop and one for all other threads, which allocate little.
ARENAS_MAX: Final = 2
# Until that check, so much free memory stays at the end of a heap, and larger buffers are mapped
# one by one: a message of 1 MiB costs twice as much if its pages come from the system each time.
HEAP_FREE_BYTES: Final = 32 << 20
HEAP_PIECE_BYTES_MAX: Final = 8 << 20

# How often the path of the data folder is compared with the folder that is locked.
FOLDER_PERIOD_S: Final = 10.0

# Descriptors that the event loop needs to start and to end.
LOOP_FILES: Final = 12

SIGNAL_APART_S: Final = 0.1  # a signal that comes again sooner is the same one

# Exit codes: 2 means an invalid command line, 128 + n is what shells show for signal n.
EXIT_OK: Final = 0
EXIT_START_FAILED: Final = 1
EXIT_STOP_FAILED: Final = 1  # something may not have been saved; the log has the details
EXIT_BAD_CONFIG: Final = 2
EXIT_PARTLY: Final = 3  # done, except for unreadable parts
EXIT_SIGNAL_BASE: Final = 128
