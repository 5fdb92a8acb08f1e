"""Limits and defaults of the NSQ client.

They stand alone because all its modules use them, and each owner's limits have a file.
"""

from __future__ import annotations

from typing import Final

PORT: Final = 4150
NAME_MAX: Final = 64  # of a topic or channel, #ephemeral included
CONNECT_S: Final = 10.0  # dialling and the whole hand-shake
HEARTBEAT_MS: Final = 30_000
# Heartbeats that may be missing in a row before the connection is given up.
HEARTBEATS_MISSED: Final = 2
# A larger frame means that the other side does not speak NSQ.
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024

MAX_IN_FLIGHT: Final = 1
RDY_MAX: Final = 2500  # of a server that does not report its own
MAX_ATTEMPTS: Final = 5
REQUEUE_S: Final = 90.0  # times the attempts so far
REQUEUE_S_MAX: Final = 900.0
BACKOFF_S_MAX: Final = 120.0
REDISTRIBUTE_S: Final = 5.0
RDY_IDLE_S: Final = 10.0  # without a message for so long, RDY goes to another connection
RDY_HELD_S: Final = 30.0  # and after so long in any case

RECONNECT_S: Final = 8.0  # doubled at each failure
RECONNECT_S_MAX: Final = 120.0
LOOKUP_S: Final = 60.0
LOOKUP_JITTER: Final = 0.3  # part of LOOKUP_S that is added at random
LOOKUP_TIMEOUT_S: Final = 10.0

CLOSE_S: Final = 30.0
# Publishes of one connection that wait for their answer.
PENDING_MAX: Final = 65_536
WRITER_RETRY_S: Final = 1.0  # a server that could not be reached is left out for so long, doubled
WRITER_RETRY_S_MAX: Final = 30.0

DEFLATE_LEVEL: Final = 6

assert RDY_IDLE_S < RDY_HELD_S
assert REQUEUE_S <= REQUEUE_S_MAX
assert RECONNECT_S <= RECONNECT_S_MAX
