"""Numbers of leaf node connections: defaults of nats-server and our own limits."""

from __future__ import annotations

from typing import Final

from broker.base.units import GIB, KIB, MIB, MS, SECOND
from broker.protocols.nats.limits import NATS_MAX_CONTROL_LINE_MAX, NATS_PAYLOAD_HUGE

NATS_LEAF_PORT: Final = 7422
NATS_LEAF_RECONNECT: Final = 1 * SECOND
NATS_LEAF_VERSION_MIN: Final = (2, 8, 0)  # the lowest allowed min_version
NATS_LEAF_LINE_MAX: Final = NATS_MAX_CONTROL_LINE_MAX  # of one line between servers

# Of one message between servers: a hub may allow larger messages than its leaf.
NATS_LEAF_PAYLOAD_MAX: Final = 64 * MIB
NATS_LEAF_PENDING: Final = 1 * GIB  # of pending interest lines; for messages: max_pending
NATS_LEAF_DIAL: Final = 1 * SECOND  # to connect (DEFAULT_ROUTE_DIAL)
NATS_LEAF_INFO: Final = 1 * SECOND  # from then to the peer's INFO (DEFAULT_LEAFNODE_INFO_WAIT)
NATS_LEAF_ANSWER: Final = 2 * SECOND  # from CONNECT to its answer (connectProcessTimeout)
NATS_LEAF_FIRST_PING: Final = 1 * SECOND  # after the handshake (firstPingInterval)
NATS_LEAF_DELAY: Final = 30 * SECOND  # before the next attempt if the peer is not suitable
NATS_LEAF_VERSION_WAIT: Final = 5 * SECOND  # before a peer with a too old version is disconnected
NATS_LEAF_ANNOUNCE: Final = 1_024  # keys announced to a new peer per turn
NATS_LEAF_BUCKETS: Final = 1_024  # of the keys of an account; each is announced as a whole
NATS_LEAF_ERROR_SHOWN: Final = 512  # characters of a peer's error, in the log
NATS_LEAF_STALL: Final = 10 * MS  # longest pause of a link for a client that reads too slowly
NATS_LEAF_URLS_MAX: Final = 1_000  # that a hub may announce
# With s2_auto: up to the first nothing is compressed, up to the second s2_fast, then s2_better,
# above the third s2_best.
NATS_LEAF_RTTS: Final = (10 * MS, 50 * MS, 100 * MS)
NATS_LEAF_RTTS_MAX: Final = 4
NATS_LEAF_EARLY_BLOCK: Final = NATS_LEAF_LINE_MAX  # of S2, decompressed, before the login
NATS_LEAF_BLOCK: Final = 4 * MIB  # the largest that S2 knows
NATS_LEAF_TUNNEL_BLOCK: Final = 64 * KIB  # read at a time from an https proxy, or for it

assert NATS_LEAF_PAYLOAD_MAX <= NATS_PAYLOAD_HUGE
assert NATS_LEAF_PAYLOAD_MAX <= NATS_LEAF_PENDING
