# cython: language_level=3
"""The state of a cursor as journal operations, and back."""
from broker.core.cursor cimport Cursor

cdef object snapshot(Cursor cursor)                 # OSError when no file can be made
cdef object restore(Cursor cursor, list ops)
