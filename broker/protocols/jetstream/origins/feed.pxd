# cython: language_level=3
"""Copies the messages of one stream into another. See feed.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.interfaces cimport StreamReaders
from broker.engine.stream.store cimport StreamStore, message_t
from broker.protocols.jetstream.publish.stream cimport Stream
from broker.protocols.nats.accounts.transform cimport Transform


cdef class Pattern:
    cdef bytes source               # a subject with wildcards
    cdef Transform transform        # None: subjects stay as they are
    cdef bytes label                # ` FILTER DESTINATION ` in the header of a sourced message


cdef class Feed(StreamReaders):
    cdef readonly Stream stream     # where messages are copied to
    cdef readonly str name          # of the stream where they come from
    cdef bytes raw_name
    cdef readonly bint mirror       # seqs and times stay
    cdef list patterns              # of Pattern, in order; empty = all subjects
    cdef StreamStore origin         # None = there is none now
    cdef Filter filter
    cdef readonly uint64_t next     # seq in the origin: all before it are copied, or not wanted
    cdef readonly bint lost         # what was copied last is not stored: see `resume`
    cdef readonly bint waiting      # the stream takes nothing now
    cdef readonly bint closed
    cdef char *room                 # owned; of the headers and body of a sourced message
    cdef size_t room_cap
    cdef char *subject_room         # owned

    cdef int copy(self, const message_t *m) except -1
    cdef Pattern pattern_of(self, const char *subject, size_t n)
    cdef int rewrite(self, message_t *m, Pattern pattern) except -1
    cdef void queue(self) noexcept
    cdef void pause(self) noexcept
