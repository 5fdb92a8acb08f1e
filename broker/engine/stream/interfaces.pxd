# cython: language_level=3
"""What a store tells those who read its stream."""
from libc.stdint cimport uint32_t, uint64_t

from broker.runtime.interfaces cimport Task


# All methods come in the middle of what the store does: they may not call it back.
cdef class StreamReaders(Task):
    # More messages can be read: once for each write, not for each message.
    cdef void stored(self) noexcept
    # A live message, of the subject with that id, is gone; its index knows by now. For limits, acks,
    # deletes and the messages that a purge by subject removes.
    cdef void killed(self, uint64_t seq, uint32_t subject) noexcept
    # All messages below seq are gone, without `killed` for each of them; last_seq may be seq - 1
    # now although no message had it.
    cdef void purged_below(self, uint64_t seq) noexcept
    # A purge of all messages that this filter matches begins (their `killed` calls follow) or has
    # ended. `filter`: a Filter of the store's index, `subjects`: its subjects.
    cdef void purge_begins(self, object filter, tuple subjects) noexcept
    cdef void purge_ends(self) noexcept
