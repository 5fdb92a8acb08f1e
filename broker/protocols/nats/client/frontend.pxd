# cython: language_level=3
"""State shared by all NATS connections of a server: limits, counters, open sessions."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.runtime.turn cimport Turn
from broker.runtime.types cimport tw_key_t

# The policy for a subscriber whose queue is full.
cdef enum:
    SLOW_CLOSE = 0      # close its connection, like the original
    SLOW_DROP = 1       # drop messages for it
    SLOW_PAUSE = 2      # pause its publishers before the queue is full


cdef class NatsFrontend:
    cdef readonly Turn turn
    cdef public object handshake             # of all sessions: handshake.ClientHandshake
    cdef public object tracer           # receives every operation, or None
    cdef public bint must_connect       # the first operation must be CONNECT
    cdef bint headers                   # whether headers are supported
    cdef readonly set sessions          # open sessions
    cdef public bytes info_head         # INFO up to the fields of the single client
    cdef tw_key_t key                   # of the sid tables
    cdef uint64_t stamp                 # marks the sessions already seen in a match
    cdef char *mapped                   # owned scratch for one mapped subject
    cdef void *stalled                  # a Session with much pending output, found during delivery
    cdef size_t stall_bytes             # bytes of that output
    cdef uint32_t control_line_max, run_max, exclusion_min
    cdef uint64_t work_max, teardown_max    # in units of work: see routing/trie.pxd
    cdef uint64_t teardown_turn, teardown_left  # work left of it in that turn: see teardown_end
    cdef readonly int64_t payload_max
    cdef size_t run_bytes
    cdef uint64_t subscriptions_max, tokens_max     # 0 = no limit
    cdef readonly uint64_t connections_max          # 0 = none may connect
    cdef readonly int64_t ping_interval_ns
    cdef int64_t first_ping_ns, write_deadline_ns, stall_ns, rtt_max_age_ns
    cdef int64_t leaf_deadline_ns       # write_deadline_ns of links
    cdef bint write_retries, leaf_retries       # see LineSession.retries_writes
    cdef uint32_t ping_max, first_ping_jitter
    cdef readonly uint64_t total_connections
    cdef uint64_t last_id               # one numbering for connections of all kinds
    cdef public uint64_t slow_consumers, stale, stalls, dropped
    cdef uint8_t slow_policy            # SLOW_*
    # Of closed sessions.
    cdef uint64_t closed_in_msgs, closed_in_bytes, closed_out_msgs, closed_out_bytes

    cdef uint64_t teardown_end(self) noexcept
    cdef void torn_down(self, uint64_t end) noexcept
