# cython: language_level=3
"""Which consumer of a cursor takes a record: the nearest, or who has the least to do.

With `unacked_first` what comes back is not subject to credit: it was counted when it was given
for the first time, and whoever joins a group or resumes gets all that was left to it.
"""
from broker.engine.cursor.cursor cimport CHOICE_LEAST, NEAREST, Cursor, consumer_t

cdef enum:
    AGAIN_BYTES = 256       # what one record given again counts for, whatever its size


cdef consumer_t *chosen(Cursor cursor) noexcept:
    return least(cursor) if cursor.choice == <int>CHOICE_LEAST else nearest(cursor)


cdef consumer_t *nearest(Cursor cursor) noexcept:
    """The first of the nearest."""
    cdef consumer_t *best = cursor.ring
    cdef consumer_t *c = best.next
    while c != cursor.ring and best.nearness < NEAREST:
        if c.nearness > best.nearness:
            best = c
        c = c.next
    return best


cdef consumer_t *least(Cursor cursor) noexcept:
    """The first of those with the fewest records in flight; who is unwell only if all are."""
    cdef consumer_t *best = cursor.ring
    cdef consumer_t *c = best.next
    while c != cursor.ring:
        if best.unwell > c.unwell or (
                best.unwell == c.unwell and c.in_flight < best.in_flight):
            best = c
        c = c.next
    return best


cdef size_t give_unacked(Cursor cursor) noexcept:
    cdef consumer_t *c
    cdef size_t given = 0
    while cursor.inflight.again_first and given <= cursor.shared.pump_bytes_max:
        c = taker_of_unacked(cursor)
        if c == NULL:
            break
        given += AGAIN_BYTES
        if cursor.give_again(c) and c.in_flight >= c.credit:
            cursor.leave_ring(c)
    if given > cursor.shared.pump_bytes_max:
        cursor.wake()
    return given


cdef consumer_t *taker_of_unacked(Cursor cursor) noexcept:
    """Who has credit and the fewest in flight; a group that has nobody such asks the others."""
    cdef consumer_t *c = cursor.all
    cdef consumer_t *best = NULL
    cdef int rank, best_rank = 3
    while c != NULL:
        if not c.blocked:
            rank = 2 if c.unwell else 1 if c.in_flight >= c.credit else 0
            if rank < best_rank or (rank == best_rank and c.in_flight < best.in_flight):
                best = c
                best_rank = rank
        c = c.all_next
    if best_rank == 2 and cursor.choice != <int>CHOICE_LEAST:
        return NULL         # alone and unwell: it gets them when it is back
    return best
