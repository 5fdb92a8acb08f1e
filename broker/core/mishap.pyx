# cython: language_level=3
"""What a log does when the disk fails it: publishes fail, and nothing is half there.

    a write fails   what is not in the file by then fails, its seqs are used again
    a sync fails    what waited for it fails; its file gets no more records and is verified by
                    whoever reads it, because the kernel may have dropped what it could not write
"""
import errno
import os

from libc.stdint cimport uint64_t

from broker.core.log cimport SYNC_ALWAYS, Log
from broker.core.segment cimport Segment
from broker.core.upkeep cimport drop_segment

cdef enum:
    FAILURES_KEPT = 64      # ranges of failed tickets remembered


cdef void refuse(Log log, object problem) noexcept:
    """Appends fail from now until a retry is due; says so once."""
    if not log.last_error:
        log.shared.report('error', 'log refuses appends', log=log.name, reason=str(problem))
    log.last_error = getattr(problem, 'errno', None) or errno.ENOMEM
    log.refused_until_ns = log.shared.turn.now_ns + log.shared.retry_ns
    log.shared.write_errors += 1
    log.touch()


cdef void write_failed(Log log, int error) noexcept:
    """A write failed: nothing that is not in the file will get there."""
    cdef Segment segment
    cdef uint64_t first = log.visible
    for segment in log.segments:
        if segment.planned > segment.size:
            segment.forget_from(max(segment.size, segment.start()))
    while len(log.segments) > 1 and log.active.first_seq > first:
        drop_segment(log, log.segments.pop())
        log.active = log.segments[len(log.segments) - 1]
    log.active.active = True
    log.active.next_seq = first
    log.full_batches.clear()
    log.batch = None
    log.waiting_bytes = 0
    log.next_seq = first
    note_failure(log, log.written_ticket + 1, log.ticket, error)
    log.written_ticket = log.ticket
    refuse(log, OSError(error, os.strerror(error)))
    if log.syncs == 0:
        log.synced_ticket = log.ticket
    log.settle()
    log.unstall()


cdef void sync_failed(Log log, int error) noexcept:
    """A sync failed: what waited for it fails, and its file is used no more."""
    cdef Segment segment
    log.shared.sync_errors += 1
    log.touch()
    log.last_error = error
    log.shared.report('error', 'sync failed: the segment is closed and will be verified',
                      log=log.name, segment=log.active.first_seq, reason=os.strerror(error))
    if log.sync_policy == SYNC_ALWAYS and log.written_ticket > log.synced_ticket:
        note_failure(log, log.synced_ticket + 1, log.written_ticket, error)
    log.synced_ticket = log.written_ticket
    log.known_to_root = False
    for segment in log.segments:
        if segment.fd >= 0:
            segment.ready = 0
            segment.known_to_folder = False
    if log.active.planned > log.active.start():
        log.active.cap = log.active.planned     # the next record begins a new file
    log.settle()


cdef void note_failure(Log log, uint64_t first, uint64_t last, int error) noexcept:
    """Tickets first..last failed. Only the last failures are kept: who waited for older ones has
    been told."""
    if log.failures is None:
        log.failures = []
    if log.failures:
        before = log.failures[len(log.failures) - 1]
        if before[1] + 1 == first and before[2] == error:
            first = before[0]
            log.failures.pop()
    log.failures.append((first, last, error))
    while len(log.failures) > FAILURES_KEPT:
        log.failures.pop(0)
