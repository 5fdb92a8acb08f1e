# cython: language_level=3
"""The parts of a cursor: the set of acked records, the records in flight, the latencies."""
from libc.stdint cimport int64_t, uint64_t

from broker.engine.cursor.acks cimport AckSet
from broker.engine.cursor.inflight cimport Inflight, entry_t
from broker.engine.cursor.latency cimport AckLatency


cdef class Acks:
    cdef AckSet acks

    def __init__(self, AckSet acks not None):
        self.acks = acks

    @property
    def floor(self):
        return self.acks.floor

    @property
    def count(self):
        return self.acks.count

    @property
    def word_count(self):
        """Words of its bitmap."""
        return self.acks.mask + 1

    def __contains__(self, uint64_t seq):
        return self.acks.has(seq)

    def ack(self, uint64_t seq):
        """Add one; True when it was new."""
        return bool(self.acks.add(seq))

    def runs(self):
        return self.acks.runs()

    def reset(self, uint64_t floor):
        self.acks.reset(floor)

    def fits(self, uint64_t seq):
        return self.acks.fits(seq)


cdef class Entries:
    cdef Inflight inflight

    def __init__(self, Inflight inflight not None):
        self.inflight = inflight

    @property
    def size(self):
        return self.inflight.size

    @property
    def again(self):
        return self.inflight.again

    @property
    def slab_count(self):
        """Slabs it has allocated."""
        return self.inflight.slabs_size

    @property
    def unmoved(self):
        """Slots of the old table that are still to be moved."""
        return self.inflight.old_left if self.inflight.old != NULL else 0

    def __contains__(self, uint64_t seq):
        return self.inflight.find(seq) != NULL

    def make(self, uint64_t seq):
        """A new entry for seq; its index."""
        return self.inflight.make(seq).timer.tag

    def free(self, uint64_t seq):
        """Free the entry of seq; it must be in no list."""
        self.inflight.free_entry(self.inflight.find(seq))

    def push_again(self, uint64_t seq):
        self.inflight.push_again(self.inflight.find(seq))

    def pop_again(self):
        """The seq of the entry that was taken out, None = the queue is empty."""
        cdef entry_t *e = self.inflight.pop_again()
        return None if e == NULL else e.seq

    def clear(self):
        self.inflight.clear()


def record_latency(AckLatency sketch not None, int64_t latency_ns, int64_t now_ns):
    """See AckLatency.note."""
    sketch.record(latency_ns, now_ns)
