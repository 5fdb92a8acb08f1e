# cython: language_level=3
"""The state of a cursor as journal operations, and back."""
from broker.engine.cursor.cursor cimport Cursor

cdef void write_down(Cursor cursor) noexcept        # of a cursor that has a journal
cdef object restore(Cursor cursor, list ops)
