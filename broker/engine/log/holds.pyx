# cython: language_level=3
"""Keeping records of a log for readers of its files: see trim in retention.pyx."""
from libc.stdint cimport uint64_t

from broker.engine.log.log cimport Log


def hold(Log log, seq):
    """Keep every segment with records from `seq` on, whoever is done with them; None = no more."""
    cdef uint64_t place = <uint64_t>-1 if seq is None else seq
    cdef bint raised = place > log.held_from
    log.held_from = place
    if raised:
        log.touch()     # the housekeeping drops what nobody else needs


def held_from(Log log):
    """The place, or None."""
    return None if log.held_from == <uint64_t>-1 else log.held_from
