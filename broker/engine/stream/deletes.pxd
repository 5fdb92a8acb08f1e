# cython: language_level=3
"""Which messages of a stream were deleted, as a journal beside its log. See deletes.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from broker.engine.cursor.journal cimport Journal, JournalReader
from broker.engine.log.interfaces cimport LogBase
from broker.engine.stream.subjects cimport SubjectIndex
from broker.runtime.interfaces cimport Task

cdef struct dead_t:
    uint64_t first
    uint64_t after          # first..after-1 are dead


cdef class DeadRuns(JournalReader):
    cdef dead_t *runs       # owned; after `settle` sorted, and no two touch each other
    cdef size_t size, cap, at
    cdef readonly uint64_t floor        # all below it are dead
    cdef readonly uint64_t next_seq     # no seq below it may be given again

    cdef bint has(self, uint64_t seq) noexcept      # seqs that are asked about must rise
    cdef void settle(self) noexcept


cdef class Deletes:
    cdef LogBase log
    cdef SubjectIndex subjects
    cdef readonly Journal journal       # None in memory
    cdef list waiters                   # (mark, future), in order of their marks
    # Marks: writes of the journal that had ended, and 1, because what an earlier process has
    # written need not be on the disk.
    cdef uint64_t syncing               # ... when the sync under way began
    cdef uint64_t synced                # ... when the last one began that has ended well
    cdef bint under_way                 # a sync is
    cdef bint damaged                   # a whole new file is to be written, before anything else
    cdef int64_t retry_ns               # not before that, if the last one failed
    cdef bint wanted                    # a sync is to begin as soon as that is possible

    cdef DeadRuns load(self, Task watcher)
    cdef void add(self, uint64_t seq) noexcept          # a message was deleted
    cdef void add_run(self, uint64_t first, uint64_t count) noexcept    # so many from first on
    cdef void add_below(self, uint64_t seq) noexcept    # all below seq were
    cdef void skip_to(self, uint64_t seq) noexcept      # the next message has at least this seq
    # At the end of a turn, and after a write or a sync of the journal. `next_seq`: after the last
    # message that cannot fail any more; `gaps`: seqs without a message before it.
    cdef void run(self, uint64_t next_seq, uint64_t gaps) noexcept
    cdef bint would_shrink(self, uint64_t gaps) noexcept
    cdef void sync(self) noexcept                       # bring all of it onto the disk
    cdef uint64_t mark(self) noexcept       # all so far is on the disk once `synced` is that
    cdef void release_idle(self) noexcept               # keep no file open that nothing needs
    cdef bint is_synced(self) noexcept                  # it is
    cdef void write_snapshot(self, uint64_t next_seq) noexcept
    cdef void end_sync(self) noexcept
    cdef void answer(self) noexcept
    cdef void refuse(self, int error) noexcept
