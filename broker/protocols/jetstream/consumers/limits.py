"""Limits of consumers.

Times are nanoseconds, sizes are bytes, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import MIB, SECOND

# A consumer delivers this much in one turn of the event loop. The next turn delivers the rest.
TURN_MESSAGES: Final = 2_000
TURN_BYTES: Final = 1 * MIB

# While max_ack_pending is reached, a no_wait request without an expiry waits this long for an ack
# that allows the next delivery.
NO_WAIT_ACK: Final = 1 * SECOND

# A full queue is searched for requests without subscribers at most once in this time.
SWEEP_INTERVAL: Final = 1 * SECOND

# --- push consumers (server/consumer.go) ---------------------------------------------------------

FLOW_WINDOW_MAX: Final = 32 * MIB
FLOW_WINDOW_FIRST: Final = FLOW_WINDOW_MAX // 16
FLOW_TOKEN: Final = 4  # characters at the end of the subject of a flow control request

assert FLOW_WINDOW_FIRST < FLOW_WINDOW_MAX
assert TURN_BYTES <= FLOW_WINDOW_FIRST
