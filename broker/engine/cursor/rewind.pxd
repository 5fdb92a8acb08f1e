# cython: language_level=3
"""Putting a cursor to another place of its log."""
from libc.stdint cimport uint64_t

from broker.engine.cursor.cursor cimport Cursor

# Everything below seq counts as acked, nothing from it on; what is in flight is given up.
cdef void stand_at(Cursor cursor, uint64_t seq) noexcept
