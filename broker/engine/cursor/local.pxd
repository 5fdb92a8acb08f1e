# cython: language_level=3
"""A consumer for Python code: readers inside the process, and tests."""
from broker.engine.cursor.cursor cimport Cursor, consumer_t
from broker.runtime.interfaces cimport Sink


cdef class LocalConsumer(Sink):
    cdef consumer_t consumer
    cdef readonly Cursor cursor
    cdef public list records  # received and not yet processed: (seq, attempts, timestamp_ns, body)
    cdef public list heads          # None, or (subject, reply, headers) of each received record
    cdef public object arrived      # called after each record; None = nothing is called
    cdef public bint full           # refuse deliveries until `drained`
