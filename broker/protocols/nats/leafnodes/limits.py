"""Numbers of leaf node connections: defaults of nats-server and our own limits."""

from __future__ import annotations

from typing import Final

from broker.base.units import GIB, MIB, MS, SECOND
from broker.protocols.nats.limits import NATS_MAX_CONTROL_LINE_MAX, NATS_PAYLOAD_HUGE

NATS_LEAF_PORT: Final = 7422
NATS_LEAF_RECONNECT: Final = 1 * SECOND
NATS_LEAF_VERSION_MIN: Final = (2, 8, 0)  # the least that min_version may ask for
NATS_LEAF_LINE_MAX: Final = NATS_MAX_CONTROL_LINE_MAX  # of one line between servers

# Of one message between servers: a hub may allow its clients more than its leaf does.
NATS_LEAF_PAYLOAD_MAX: Final = 64 * MIB
NATS_LEAF_PENDING: Final = 1 * GIB  # lines of interest that wait for a peer; messages: max_pending
NATS_LEAF_DIAL: Final = 1 * SECOND  # to connect (DEFAULT_ROUTE_DIAL)
NATS_LEAF_INFO: Final = 1 * SECOND  # from there to the peer's INFO (DEFAULT_LEAFNODE_INFO_WAIT)
NATS_LEAF_ANSWER: Final = 2 * SECOND  # from our CONNECT to its answer (connectProcessTimeout)
NATS_LEAF_FIRST_PING: Final = 1 * SECOND  # after the handshake (firstPingInterval)
NATS_LEAF_DELAY: Final = 30 * SECOND  # before the next try when the peer is the wrong one
NATS_LEAF_VERSION_WAIT: Final = 5 * SECOND  # a peer that is too old is kept so long
NATS_LEAF_ANNOUNCE: Final = 1_024  # keys that are announced to a new peer per turn
NATS_LEAF_BUCKETS: Final = 1_024  # of the keys of an account; one is announced as a whole
NATS_LEAF_ERROR_SHOWN: Final = 512  # characters of a peer's error, in the log
NATS_LEAF_STALL: Final = 10 * MS  # a link rests so long at most for a client that reads too slowly
NATS_LEAF_URLS_MAX: Final = 1_000  # that a hub can name

assert NATS_LEAF_PAYLOAD_MAX <= NATS_PAYLOAD_HUGE
assert NATS_LEAF_PAYLOAD_MAX <= NATS_LEAF_PENDING
