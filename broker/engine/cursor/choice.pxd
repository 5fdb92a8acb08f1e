# cython: language_level=3
"""Which consumer of a cursor takes a record."""
from broker.engine.cursor.cursor cimport Cursor, consumer_t

# Of those in the ring, which is not empty, by the cursor's `choice`.
cdef consumer_t *chosen(Cursor cursor) noexcept

# Gives what waits in the `again` queue to whoever can take it, whatever its credit, until nobody
# can; returns roughly how many bytes that were.
cdef size_t give_unacked(Cursor cursor) noexcept
