# cython: language_level=3
"""What all logs of one engine share: the turn, the workers, the limits, the counters."""
from libc.stdint cimport int64_t

from broker.core.jobs cimport Worker
from broker.core.router cimport Router
from broker.core.turn cimport Turn

# Upper bounds of the sync latency histogram, in seconds.
SYNC_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


cdef class Shared:
    def __init__(self, Turn turn, Router router, root, report, limits):
        """`limits`: the engine's numbers by name, each set on the attribute of that name."""
        self.turn = turn
        self.router = router
        self.root = root
        self.report = report
        for name, value in limits.items():
            setattr(self, name, value)
        self.writer = Worker('log-writer')
        self.syncer = Worker('log-syncer')
        self.loader = Worker('log-loader')
        self.sync_buckets = [0] * (len(SYNC_BUCKETS) + 1)

    cdef void note_sync(self, int64_t took_ns) noexcept:
        cdef double seconds = took_ns / 1e9
        cdef Py_ssize_t i = 0
        while i < len(SYNC_BUCKETS) and seconds > SYNC_BUCKETS[i]:
            i += 1
        self.sync_buckets[i] += 1
        self.syncs += 1
        self.sync_seconds += seconds

    @property
    def workers(self):
        """The three workers; the loop calls `reap` of each when its event_fd is readable."""
        return (self.writer, self.syncer, self.loader)
