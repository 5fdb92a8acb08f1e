# cython: language_level=3
"""Acks with a reply subject, which are confirmed when they are durable."""
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from broker.protocols.jetstream.consumers.outlet cimport Outlet

# One such ack; its reply subject follows.
cdef struct confirm_t:
    uint64_t ticket         # of the cursor; 0 = it is durable already
    uint32_t reply_len


cdef class Confirms:
    cdef Outlet outlet
    cdef char *rows             # owned: confirm_t one after the other, each with its reply subject
    cdef size_t head, tail, cap

    cdef void add(self, uint64_t ticket, const char *reply, size_t n) noexcept
    # Confirm the acks of this ticket and of earlier ones.
    cdef void send(self, uint64_t ticket) noexcept
