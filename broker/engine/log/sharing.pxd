# cython: language_level=3
"""New records of a log, told to those who do not read the log."""
from broker.engine.log.batch cimport Batch
from broker.engine.log.log cimport Log

# Hands new records to live subscribers, and tells cursors of those that must wait.
cdef void share(Log log, Batch batch) noexcept
