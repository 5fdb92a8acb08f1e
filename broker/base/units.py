"""Units of time and size, and the largest values of any setting.

Times are nanoseconds, sizes are bytes.
"""

from __future__ import annotations

from typing import Final

US: Final = 1_000
MS: Final = 1_000 * US
SECOND: Final = 1_000 * MS
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- configuration: anything -----------------------------------------------------------------

DURATION_MAX: Final = 3650 * DAY  # ten years still fit 63 bits of nanoseconds with room to add
COUNT_MAX: Final = 2**62  # counts are signed 64-bit in the engine; sums must not overflow
CONNECTIONS_MAX: Final = 2**20  # Linux' default maximum of open files per process (fs.nr_open)
PORT_MAX: Final = 65_535

# One message with headers must fit into a 32-bit record length, with a reserve.
MESSAGE_SIZE_CEILING: Final = 256 * MIB

assert 2 * DURATION_MAX < 2**63
assert MESSAGE_SIZE_CEILING < 2**31

# --- integers --------------------------------------------------------------------------------

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
SEQ_MAX: Final = 2**62  # no log reaches this number

INT64_MIN: Final = -(2**63)
