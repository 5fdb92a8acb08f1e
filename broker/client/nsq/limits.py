"""Limits and defaults of the NSQ client.

They are separate because all its modules use them.
"""

from __future__ import annotations

from typing import Final

PORT: Final = 4150
NAME_MAX: Final = 64  # characters of a topic or channel, including #ephemeral
CONNECT_S: Final = 10.0  # for connecting and the whole handshake
HEARTBEAT_MS: Final = 30_000
# Missing heartbeats in a row after which the connection is closed.
HEARTBEATS_MISSED: Final = 2
# If a frame is larger, the server is not an NSQ server.
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024

MAX_IN_FLIGHT: Final = 1
RDY_MAX: Final = 2500  # of a server that does not report its limit
MAX_ATTEMPTS: Final = 5
REQUEUE_S: Final = 90.0  # multiplied by the attempts of the message
REQUEUE_S_MAX: Final = 900.0
BACKOFF_S_MAX: Final = 120.0
REDISTRIBUTE_S: Final = 5.0
RDY_IDLE_S: Final = 10.0  # RDY of a connection without a message for so long moves to another one
RDY_HELD_S: Final = 30.0  # RDY moves to another connection after this time in any case

RECONNECT_S: Final = 8.0  # doubled at each failure
RECONNECT_S_MAX: Final = 120.0
LOOKUP_S: Final = 60.0
LOOKUP_JITTER: Final = 0.3  # part of LOOKUP_S that is added at random
LOOKUP_TIMEOUT_S: Final = 10.0

# Kinds of errors of a handler whose traceback is logged once; later kinds are logged without.
ERROR_KINDS_MAX: Final = 64

CLOSE_S: Final = 30.0
# Publishes of one connection that wait for their answer.
PENDING_MAX: Final = 65_536
WRITER_RETRY_S: Final = 1.0  # an unreachable server is skipped for this long, doubled each time
WRITER_RETRY_S_MAX: Final = 30.0

DEFLATE_LEVEL: Final = 6

assert RDY_IDLE_S < RDY_HELD_S
assert REQUEUE_S <= REQUEUE_S_MAX
assert RECONNECT_S <= RECONNECT_S_MAX
