"""Limits and defaults of the client of the bulk API.

They are separate because all its modules use them.
"""

from __future__ import annotations

from typing import Final

PORT: Final = 4171
TIMEOUT_S: Final = 30.0
RETRIES: Final = 5
RETRY_S: Final = 0.1  # doubled after each attempt
RETRY_S_MAX: Final = 5.0
BUSY_S_MAX: Final = 30.0  # the longest wait that a broker may request
NAMES_BYTES: Final = 6 << 10  # names of topics in one request: proxies accept lines of 8 KiB
PATTERN_CHARS: Final = 900  # names that need a pattern; a broker accepts 1,000
FETCH_BYTES: Final = 4 << 20  # of one range, like the default of the broker
ANSWER_BYTES_MAX: Final = 64 << 20  # of a response in JSON
FRAME_BYTES_MAX: Final = (2 << 30) + (64 << 20)  # the largest record of Arrow, and a range
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 << 20
BATCH_BYTES_MAX: Final = 512 << 20  # Arrow is limited to 2 GiB, and text may grow threefold
BLOCK_BYTES: Final = 8 << 20  # a block that is uploaded
BLOCK_BYTES_MAX: Final = 16 << 20  # the largest block that a broker accepts
