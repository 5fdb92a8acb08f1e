# cython: language_level=3
"""Acks with a reply subject: an empty message confirms each when it is durable.

    head                          tail
    [ticket, n | reply][ticket, n | reply] ...      in the order of tickets
"""
cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from broker.protocols.jetstream.consumers.outlet cimport Outlet, inbox_t

cdef enum:
    ROWS_MIN = 1024
    ROWS_KEPT = 1 << 18     # a larger buffer is freed when no ack waits


@cython.final
@cython.no_gc_clear
cdef class Confirms:
    def __init__(self, Outlet outlet not None):
        self.outlet = outlet

    def __dealloc__(self):
        free(self.rows)

    cdef void add(self, uint64_t ticket, const char *reply, size_t n) noexcept:
        cdef confirm_t *row
        cdef size_t size = row_size(n), cap
        cdef char *grown
        if self.tail + size > self.cap:
            if self.head:
                memmove(self.rows, self.rows + self.head, self.tail - self.head)
                self.tail -= self.head
                self.head = 0
            if 2 * (self.tail + size) > self.cap:
                cap = max(<size_t>ROWS_MIN, 4 * (self.tail + size))
                grown = <char *>realloc(self.rows, cap)
                if grown == NULL:
                    return      # without a confirmation the client acks again
                self.rows = grown
                self.cap = cap
        row = <confirm_t *>(self.rows + self.tail)
        row.ticket = ticket
        row.reply_len = <uint32_t>n
        memcpy(<char *>row + sizeof(confirm_t), reply, n)
        self.tail += size

    cdef void send(self, uint64_t ticket) noexcept:
        cdef confirm_t *row
        cdef inbox_t to
        while self.head < self.tail:
            row = <confirm_t *>(self.rows + self.head)
            if row.ticket > ticket:
                return
            to.subject = <char *>row + sizeof(confirm_t)
            to.len = <uint16_t>row.reply_len
            to.match = NULL
            self.head += row_size(row.reply_len)
            self.outlet.send_own(&to, NULL, 0, NULL, 0, 0)
        self.head = self.tail = 0
        if self.cap > <size_t>ROWS_KEPT:
            free(self.rows)
            self.rows = NULL
            self.cap = 0


cdef inline size_t row_size(size_t n) noexcept nogil:
    return (sizeof(confirm_t) + n + 7) & ~<size_t>7
