"""Limits and defaults of the load generator, with units and reasons."""

from __future__ import annotations

from typing import Final

# Size of one recv: several hundred small messages, and it fits into the L2 cache.
RECV_BUFFER_BYTES: Final = 256 * 1024
# Prebuilt publish bytes; sent repeatedly, so they should stay in the L2 cache as well.
BLOCK_BYTES: Final = 256 * 1024
# Varied traffic: messages until the sequence of subjects and sizes begins again. Of large messages
# there are fewer, so that a period stays in the L3 cache.
VARIED_UNITS: Final = 8192
VARIED_UNITS_MIN: Final = 64
VARIED_BLOCK_BYTES: Final = 8 * 1024 * 1024
UNIT_HEAD_BYTES: Final = 24  # approximate length of a control line
SEED: Final = 1
# Length of a generated header value, in bytes; uniform.
HEADER_VALUE_BYTES: Final = (8, 32)
HEADERS_MAX: Final = 100
# The most that one send of a turn may contain, so that subscribers of the same loop do not wait.
SEND_CHUNK_BYTES: Final = 128 * 1024
# How far publishers may be ahead of the slowest subscriber, in bytes as delivered. A quarter of
# nats-server's default max_pending (64 MiB), so that no server drops a subscriber as too slow.
AHEAD_BYTES: Final = 16 * 1024 * 1024
# Stopped publishers continue when this part of the allowance is free, to avoid many tiny sends.
AHEAD_RESUME_DIVISOR: Final = 8
# NSQ publishers refill their window when this part of it is free, for the same reason.
WINDOW_REFILL_DIVISOR: Final = 4

# Shorter runs measure mostly their own start.
SECONDS_MIN: Final = 1.0

# The loop returns to Python this often: progress, Ctrl-C, stall detection.
STEP_MS: Final = 100
# Without progress for this long, the run fails.
STALL_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
SERVICE_SECONDS: Final = 10.0  # until a NATS Streaming service answers its first request
# Interval at which a new server is asked whether its service is ready.
RETRY_SECONDS: Final = 0.05
# events per epoll_wait
EVENTS_MAX: Final = 256

NATS_PORT: Final = 4222
NSQ_PORT: Final = 4150
MESSAGES: Final = 1_000_000
REQUESTS: Final = 50_000
NATS_SIZE_BYTES: Final = 16
NSQ_SIZE_BYTES: Final = 200
# The limits of nats-server and nsqd are far below this one, which only finds typing errors.
SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
REQUESTS_IN_FLIGHT: Final = 1
# If the generator is busier than this, it may limit the result instead of the server.
BUSY_MAX: Final = 0.9
# Outstanding PUBs of an NSQ publisher; outstanding MPUBs when --batch is used.
PUB_WINDOW: Final = 200
MPUB_WINDOW: Final = 8
# nsqd's default max-rdy-count. With round trips it is 1: a server that may send more would delay a
# delivery until its buffer is full or FLUSH_MS have passed.
RDY: Final = 2500
ROUND_TRIP_RDY: Final = 1
# NATS Streaming: PubAcks that a publisher waits for, messages that a subscriber may have without an
# ack, and the usual clients' ack wait. A message is redelivered only if the server stalls so long.
STAN_SIZE_BYTES: Final = 128
STAN_CLUSTER: Final = "test-cluster"
STAN_WINDOW: Final = 1000
STAN_IN_FLIGHT: Final = 1024
ACK_WAIT_SECONDS: Final = 30
# Publishers wait for the slowest subscriber, before a server with the usual limit of 1,000,000
# messages drops undelivered messages.
STAN_AHEAD: Final = 100_000

JETSTREAM_SIZE_BYTES: Final = 128
JETSTREAM_BATCH: Final = 500  # messages of a pull request
# PubAcks that a JetStream publisher waits for, as clients with asynchronous publishing do.
JETSTREAM_WINDOW: Final = 1000

# Smallest output_buffer_timeout of nsqd, so that the last messages of a run do not wait for the
# usual 250 ms, which would count as part of the run.
FLUSH_MS: Final = 25
# If the time to delivery is measured, a body begins with the time at which it was due or sent.
STAMP_BYTES: Final = 8

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)

assert SEND_CHUNK_BYTES <= BLOCK_BYTES
assert BLOCK_BYTES < AHEAD_BYTES // AHEAD_RESUME_DIVISOR
assert STEP_MS / 1000 < STALL_SECONDS
