# cython: language_level=3
"""Limits arrive here once, as plain numbers that a session reads without asking Python."""
import os

from libc.stdint cimport uint64_t

from broker import limits
from broker.core.router cimport Router
from broker.core.turn cimport Turn


cdef class NatsFace:
    def __init__(self, Router router, Turn turn, config, bytes info_head):
        """`config` has the attributes of config.NatsConfig; `info_head` is options.info_head()."""
        self.router = router
        self.turn = turn
        self.sessions = set()
        self.info_head = info_head
        self.seed = int.from_bytes(os.urandom(8), 'little')
        self.stall_bytes = config.max_pending // limits.NATS_STALL_SHARE
        self.control_line_max = config.max_control_line
        self.payload_max = config.max_payload
        self.run_max = limits.NATS_RUN_MAX
        self.run_bytes = limits.NATS_RUN_BYTES
        self.teardown_max = limits.NATS_TEARDOWN
        self.subscriptions_max = config.max_subscriptions
        self.tokens_max = config.max_sub_tokens
        self.connections_max = config.max_connections
        self.ping_interval_ns = config.ping_interval_ns
        self.first_ping_ns = min(config.ping_interval_ns, limits.NATS_FIRST_PING)
        self.first_ping_jitter = limits.NATS_FIRST_PING_JITTER
        self.ping_max = config.ping_max
        self.rtt_max_age_ns = limits.NATS_RTT_MAX_AGE
        self.write_deadline_ns = config.write_deadline_ns
        self.stall_ns = limits.NATS_STALL

    def traffic(self):
        """Messages and bytes since start: (in_msgs, in_bytes, out_msgs, out_bytes)."""
        cdef uint64_t in_msgs = self.gone_in_msgs, in_bytes = self.gone_in_bytes
        cdef uint64_t out_msgs = self.gone_out_msgs, out_bytes = self.gone_out_bytes
        for session in self.sessions:
            in_msgs += session.in_msgs
            in_bytes += session.in_bytes
            out_msgs += session.out_msgs
            out_bytes += session.out_bytes
        return in_msgs, in_bytes, out_msgs, out_bytes
