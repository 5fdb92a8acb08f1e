# cython: language_level=3
"""Shared state of NATS connections. Limits are copied here as C numbers, which need no Python
attribute lookup."""
import os

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from broker.protocols.nats import limits
from broker.routing cimport trie
from broker.routing.trie cimport WORK_NODE, key_of
from broker.runtime.turn cimport Turn
from broker.protocols.nats.accounts.transform cimport SUBJECT_MAX
from broker.protocols.nats.settings import SLOW_CONSUMERS


cdef class NatsFrontend:
    def __cinit__(self):
        self.mapped = <char *>malloc(SUBJECT_MAX)
        if self.mapped == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.mapped)

    def __init__(self, Turn turn, config):
        """`config` has the attributes of settings.Settings."""
        self.turn = turn
        self.sessions = set()
        self.key = key_of(os.urandom(sizeof(self.key)))
        self.run_max = limits.NATS_RUN_MAX
        self.run_bytes = limits.NATS_RUN_BYTES
        self.teardown_max = limits.NATS_TEARDOWN * <uint64_t>WORK_NODE
        self.work_max = limits.NATS_WORK
        self.exclusion_min = limits.NATS_LEFT_OUT
        self.first_ping_jitter = limits.NATS_FIRST_PING_JITTER
        self.rtt_max_age_ns = limits.NATS_RTT_MAX_AGE
        self.stall_ns = limits.NATS_STALL
        self.configure(config)

    def configure(self, config):
        """Apply these limits to future sessions."""
        self.stall_bytes = config.max_pending // limits.NATS_STALL_SHARE
        self.control_line_max = config.max_control_line
        self.payload_max = config.max_payload
        if self.payload_max <= 0:
            self.payload_max = limits.NATS_PAYLOAD_HUGE
        self.subscriptions_max = config.max_subscriptions
        self.tokens_max = config.max_sub_tokens
        self.connections_max = max(0, config.max_connections)
        self.headers = not config.no_header_support
        self.ping_interval_ns = config.ping_interval_ns
        self.first_ping_ns = min(config.ping_interval_ns, limits.NATS_FIRST_PING)
        self.ping_max = config.ping_max
        self.write_deadline_ns = self.leaf_deadline_ns = config.write_deadline_ns
        self.write_retries = config.write_timeout == 'retry'
        self.leaf_retries = True
        if config.leafnodes is not None:
            self.leaf_retries = config.leafnodes.write_timeout != 'close'
            if config.leafnodes.write_deadline_ns:
                self.leaf_deadline_ns = config.leafnodes.write_deadline_ns
        self.slow_policy = <uint8_t>SLOW_CONSUMERS.index(config.slow_consumer)

    # All sessions share what a turn may remove: thousands of connections may close at once.

    cdef uint64_t teardown_end(self) noexcept:
        """The value of `trie.work` at which the removal of subscriptions goes on in a later turn.
        `torn_down` is to follow."""
        if self.teardown_turn != self.turn.number:
            self.teardown_turn = self.turn.number
            self.teardown_left = self.teardown_max
        return trie.work + self.teardown_left

    cdef void torn_down(self, uint64_t end) noexcept:
        """Leave the rest of the turn's share, up to this end, to other sessions."""
        self.teardown_left = end - trie.work if trie.work < end else 0

    def traffic(self):
        """Messages and bytes since the start: (in_msgs, in_bytes, out_msgs, out_bytes)."""
        cdef uint64_t in_msgs = self.closed_in_msgs, in_bytes = self.closed_in_bytes
        cdef uint64_t out_msgs = self.closed_out_msgs, out_bytes = self.closed_out_bytes
        for session in self.sessions:
            in_msgs += session.in_msgs
            in_bytes += session.in_bytes
            out_msgs += session.out_msgs
            out_bytes += session.out_bytes
        return in_msgs, in_bytes, out_msgs, out_bytes
