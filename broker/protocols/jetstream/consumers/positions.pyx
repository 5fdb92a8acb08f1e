# cython: language_level=3
"""Where a new consumer begins to read its stream.

Only the search for a time reads files: it runs in a thread, before `start_of` is called.
"""
from libc.stdint cimport uint64_t

from broker.engine.bulk.ranges import TimeSearch
from broker.engine.stream.filter cimport Filter
from broker.engine.stream.store cimport StreamStore
from broker.engine.stream.subjects cimport SubjectIndex
from broker.protocols.jetstream.consumers.checks import filters_of
from broker.protocols.jetstream.limits import JS_SEQ_MAX
from broker.protocols.jetstream.structs import moment_ns


def start_search(StreamStore store not None, config):
    """A function that finds the first message from the start time on, to be called in a thread;
    None: the start does not depend on a time."""
    if config.deliver_policy != 'by_start_time':
        return None
    finder = TimeSearch(store.log)
    moment = moment_ns(config.opt_start_time)
    return lambda: finder.find(moment)


def start_of(StreamStore store not None, config, found=None):
    """The first seq to deliver, or a list of seqs that are delivered before new messages. `found`:
    the result of `start_search`."""
    cdef SubjectIndex index = store.subjects
    cdef Filter among = index.filter(filters_of(config)) if filters_of(config) else None
    cdef object first = max(<uint64_t>1, store.first_seq)
    policy = config.deliver_policy
    if policy == 'new':
        return store.last_seq + 1
    if policy == 'last':
        # Without a filter it is the last seq of the stream, even if that message is deleted.
        if among is None:
            return max(first, store.last_seq)
        return index.last_match(among) or store.last_seq + 1
    if policy == 'last_per_subject':
        return index.last_per_subject(among)
    if policy == 'by_start_sequence':
        return max(first, clamp_seq(store, config.opt_start_seq))
    if policy == 'by_start_time' and found is not None:
        return max(first, min(found, store.last_seq + 1))
    return first


def clamp_seq(StreamStore store not None, seq):
    """A seq that a client has chosen, reduced to JS_SEQ_MAX or, if that is higher, to the next seq
    of the stream."""
    return min(seq, max(JS_SEQ_MAX, store.last_seq + 1))
