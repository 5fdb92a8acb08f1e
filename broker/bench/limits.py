"""Numbers of the load generator alone: name, unit last, why that value."""

from __future__ import annotations

from typing import Final

# One recv asks for this much: several hundred small messages, and it still sits in the L2 cache.
RECV_BUFFER_BYTES: Final = 256 * 1024
# Prebuilt publish bytes; sent over and over, so they should stay in the L2 cache as well.
BLOCK_BYTES: Final = 256 * 1024
# At most this much per send and turn, so that subscribers of the same loop get their turn.
SEND_CHUNK_BYTES: Final = 128 * 1024
# How far publishers may run ahead of the slowest subscriber, in bytes as delivered. A quarter
# of nats-server's default max_pending (64 MiB): no server may call a subscriber slow.
AHEAD_BYTES: Final = 16 * 1024 * 1024
# Held publishers go on when this part of the allowance is free again: no dribble of tiny sends.
AHEAD_RESUME_DIVISOR: Final = 8
# NSQ publishers refill their window when this part of it is free, for the same reason.
WINDOW_REFILL_DIVISOR: Final = 4

# The loop returns to Python this often: progress, Ctrl-C, stall detection.
STEP_MS: Final = 100
# No message moved for this long: the run is given up.
STALL_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
SERVICE_SECONDS: Final = 10.0  # until a NATS Streaming service answers its first request
# A server that has just opened its port is asked again this often whether the service is there.
RETRY_SECONDS: Final = 0.05
# epoll_wait takes this many events per turn.
EVENTS_MAX: Final = 256

NATS_PORT: Final = 4222
NSQ_PORT: Final = 4150
MESSAGES: Final = 1_000_000
REQUESTS: Final = 50_000
NATS_SIZE_BYTES: Final = 16
NSQ_SIZE_BYTES: Final = 200
# nats-server's and nsqd's own limits are far below; this one only guards against a slip.
SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
REQUESTS_IN_FLIGHT: Final = 1
# Outstanding PUBs of an NSQ publisher; outstanding MPUBs when --batch is used.
PUB_WINDOW: Final = 200
MPUB_WINDOW: Final = 8
# nsqd's default max-rdy-count.
RDY: Final = 2500
# NATS Streaming: PubAcks a publisher waits for, as many messages a subscriber may hold, and the
# usual clients' time to ack; nothing comes twice unless the server stands still for that long.
STAN_SIZE_BYTES: Final = 128
STAN_CLUSTER: Final = "test-cluster"
STAN_WINDOW: Final = 1000
STAN_IN_FLIGHT: Final = 1024
ACK_WAIT_SECONDS: Final = 30
# Publishers wait for the slowest subscriber before a server with the usual limit of 1,000,000
# messages throws away what it has not delivered.
STAN_AHEAD: Final = 100_000

# Smallest output_buffer_timeout nsqd grants: the last messages of a run are not held for the
# usual 250 ms, which no throughput should be charged for.
FLUSH_MS: Final = 25
# A fixed-rate body starts with the moment it was due.
STAMP_BYTES: Final = 8

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)

assert SEND_CHUNK_BYTES <= BLOCK_BYTES
assert BLOCK_BYTES < AHEAD_BYTES // AHEAD_RESUME_DIVISOR
assert STEP_MS / 1000 < STALL_SECONDS
