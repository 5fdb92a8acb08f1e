# cython: language_level=3
"""What all NATS connections of a server share: limits, counters, who is there."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.core.router cimport Router
from broker.core.turn cimport Turn


cdef class NatsFace:
    cdef readonly Router router
    cdef Turn turn
    cdef readonly set sessions          # open ones
    cdef public object info_head               # bytes: INFO up to the fields of one client
    cdef uint64_t seed                  # of the sid tables
    cdef uint64_t stamp                 # marks the sessions met while a match is looked through
    cdef void *stalled                  # a NatsSession with much to send, met while delivering
    cdef size_t stall_bytes             # how much that is
    cdef uint32_t control_line_max, payload_max, run_max, teardown_max
    cdef size_t run_bytes
    cdef uint64_t subscriptions_max, tokens_max, connections_max    # 0 = no limit
    cdef int64_t ping_interval_ns, first_ping_ns, write_deadline_ns, stall_ns, rtt_max_age_ns
    cdef uint32_t ping_max, first_ping_jitter
    cdef readonly uint64_t total_connections, slow_consumers, stale
    cdef uint64_t gone_in_msgs, gone_in_bytes, gone_out_msgs, gone_out_bytes   # of closed sessions
