# cython: language_level=3
"""What a store reports to the readers of its stream."""
from libc.stdint cimport uint32_t, uint64_t

from broker.engine.log.segment cimport Segment
from broker.runtime.interfaces cimport Task


# The store calls these methods in the middle of its own work: they must not call it.
cdef class StreamReader(Task):
    # More messages can be read: once for each write, not for each message.
    cdef void stored(self) noexcept
    # A message was removed: by a limit, an ack, a delete or a purge of its subject. `subject`: the
    # id of its subject. The index does not have it any more.
    cdef void removed(self, uint64_t seq, uint32_t subject) noexcept
    # All messages below seq were removed, without a call of `removed` for each. last_seq may be
    # seq - 1 now although no message had it.
    cdef void purged_below(self, uint64_t seq) noexcept
    # A purge of all messages below seq that the filter matches begins (their `removed` calls or
    # purged_below follow) or has ended. `filter`: a Filter of the store's index with these
    # subjects; None = all messages.
    cdef void purge_begins(self, object filter, tuple subjects, uint64_t seq) noexcept
    cdef void purge_ends(self) noexcept
    # Messages from seq on do not exist, although they could be read: they could not be synced.
    cdef void rolled_back(self, uint64_t seq) noexcept
    cdef void leave_segment(self, Segment segment) noexcept     # it is about to be dropped
    cdef void release_idle(self) noexcept       # release mappings that are not needed now
