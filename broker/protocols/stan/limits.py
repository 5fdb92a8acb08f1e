"""Numbers of NATS Streaming: defaults of nats-streaming-server and our own limits."""

from __future__ import annotations

from typing import Final

from broker.base.units import MIB, MS, SECOND

# Of server/server.go and stores/store.go, nats-streaming-server 0.25.6.

STAN_VERSION: Final = "0.25.6"  # the nats-streaming-server whose behaviour this is
STAN_HEARTBEAT_INTERVAL: Final = 30 * SECOND
STAN_HEARTBEAT_TIMEOUT: Final = 10 * SECOND
STAN_HEARTBEAT_FAILURES: Final = 10  # unanswered in a row; one more closes the client
STAN_MAX_CHANNELS: Final = 100  # here and below 0 = no limit
STAN_MAX_SUBSCRIPTIONS: Final = 1_000  # of one channel, including offline durables
STAN_MAX_MSGS: Final = 1_000_000  # of one channel; above it, the oldest are dropped
STAN_MAX_BYTES: Final = 1_024_000_000
STAN_PROBE_TIMEOUT: Final = 500 * MS  # for a client whose id another client requests
STAN_REQUESTS_MAX: Final = 65_536  # of all clients that wait at once; the rest are dropped
STAN_REQUESTS_TURN: Final = 32  # handled in one turn; each may create a file
STAN_SEARCHES_MAX: Final = 1_000  # concurrent searches for starts by time; more are refused
STAN_INTEREST_POLL: Final = 100 * MS  # between checks for a new subscriber of an inbox
STAN_HOUSEKEEPING: Final = SECOND  # at most, between checks for inactive channels
STAN_HOUSEKEEPING_CHANNELS: Final = 2_000  # checked in one step
STAN_STATE_FACTOR: Final = 4  # the file of clients is rewritten above this ratio
STAN_STATE_BYTES_MIN: Final = 1 * MIB  # a shorter file is never rewritten
STAN_MONITOR_LIMIT: Final = 1_024  # clients or channels on a page without limit=
