# cython: language_level=3
"""A consumer for Python code: a reader inside the process, and the tests."""
from broker.engine.cursor.cursor cimport Cursor, consumer_t
from broker.runtime.interfaces cimport Sink


cdef class LocalConsumer(Sink):
    cdef consumer_t consumer
    cdef readonly Cursor cursor
    cdef public list records        # taken, not yet looked at: (seq, attempts, timestamp_ns, body)
    cdef public list heads          # None, or (subject, reply, headers) of each record taken
    cdef public object arrived      # called with each record that comes; None = not
    cdef public bint full           # refuse deliveries until `drained`
