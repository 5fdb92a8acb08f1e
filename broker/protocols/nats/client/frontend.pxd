# cython: language_level=3
"""What all NATS connections of a server share: limits, counters, who is there."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from broker.runtime.turn cimport Turn
from broker.runtime.types cimport tw_key_t

# What becomes of a subscriber whose queue is full.
cdef enum:
    SLOW_CLOSE = 0      # its connection is closed, as the original does
    SLOW_DROP = 1       # it misses messages
    SLOW_PAUSE = 2      # who publishes to it waits before the queue is full


cdef class NatsFrontend:
    cdef readonly Turn turn
    cdef public object handshake             # who lets sessions in: see handshake.ClientHandshake
    cdef public object tracer           # is shown every operation, or None
    cdef public bint must_connect       # nothing but CONNECT may come first
    cdef bint headers                   # supported
    cdef readonly set sessions          # open ones
    cdef public bytes info_head         # INFO up to the fields of one client
    cdef tw_key_t key                   # of the sid tables
    cdef uint64_t stamp                 # marks the sessions met while a match is looked through
    cdef char *mapped                   # owned scratch for one subject that was mapped
    cdef void *stalled                  # a Session with much to send, met while delivering
    cdef size_t stall_bytes             # how much that is
    cdef uint32_t control_line_max, run_max, teardown_max
    cdef readonly int64_t payload_max
    cdef size_t run_bytes
    cdef uint64_t subscriptions_max, tokens_max     # 0 = no limit
    cdef readonly uint64_t connections_max          # 0 = no limit
    cdef readonly int64_t ping_interval_ns
    cdef int64_t first_ping_ns, write_deadline_ns, stall_ns, rtt_max_age_ns
    cdef uint32_t ping_max, first_ping_jitter
    cdef readonly uint64_t total_connections
    cdef uint64_t last_id               # connections of every kind are numbered together
    cdef public uint64_t slow_consumers, stale, dropped
    cdef uint8_t slow_policy            # SLOW_*
    cdef uint64_t gone_in_msgs, gone_in_bytes, gone_out_msgs, gone_out_bytes   # of closed sessions
