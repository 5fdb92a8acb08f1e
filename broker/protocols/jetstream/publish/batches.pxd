# cython: language_level=3
"""Messages of atomic batches, which wait in memory for their commit."""
from libc.stdint cimport int64_t, uint64_t


cdef class Batch:
    cdef readonly bytes id
    cdef readonly list messages     # (subject, headers and body, bytes of headers)
    cdef readonly uint64_t bytes
    cdef readonly int64_t due_ns    # monotonic: it expires at this time unless a message arrives


cdef class Batches:
    cdef readonly dict open         # id -> Batch, in the order of due_ns
    cdef uint64_t bytes             # of all of them

    # The batch with this id, to which the message with this number is added next. BatchError: the
    # number is wrong or a limit is reached; a batch with that id was dropped.
    cdef Batch continued(self, bytes id, uint64_t number, int64_t now_ns)
    cdef int add(self, Batch batch, bytes subject, bytes data, uint64_t headers_len) except -1
    cdef void drop(self, bytes id) noexcept
    cdef list expire(self, int64_t now_ns)      # drops batches that have expired; returns their ids
    cdef int64_t next_ns(self) noexcept         # when the next one expires; 0 = none is open
