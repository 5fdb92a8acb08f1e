# cython: language_level=3
"""The seqs of a stream that have no message."""
from libc.stdint cimport uint64_t

from broker.engine.stream.store cimport StreamStore
from broker.engine.stream.subjects cimport SubjectIndex


def deleted_seqs(StreamStore store not None, Py_ssize_t limit):
    """Those between the first and the last message, in order, at most `limit` of them."""
    cdef SubjectIndex subjects = store.subjects
    cdef uint64_t seq, after
    cdef list found = []
    if store.messages == 0:
        return found
    seq = store.first_seq
    while seq <= store.last_seq and len(found) < limit:
        if subjects.subject_of(seq):
            seq += 1
            continue
        after = subjects.next_match(None, seq)
        if after == 0:
            after = store.last_seq + 1
        while seq < after and len(found) < limit:
            found.append(seq)
            seq += 1
    return found
