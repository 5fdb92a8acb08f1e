# cython: language_level=3
"""What a log does beside appending and reading: dropping segments, closing files, giving space back."""
import os

from libc.stdint cimport uint64_t

from broker.core.cursor cimport Cursor
from broker.core.jobs cimport JOB_CLOSE, JOB_UNLINK, copy_path, job_t
from broker.core.log cimport SYNC_NONE, Log
from broker.core.segment cimport Segment


cdef void trim(Log log) noexcept:
    """Drop the segments that every cursor is done with."""
    cdef Cursor cursor
    cdef Segment segment
    cdef uint64_t keep = log.frontier
    for cursor in log.cursors.values():
        keep = min(keep, cursor.acks.floor)
    while len(log.segments) > 1:
        segment = log.segments[0]
        if segment.next_seq > keep or segment.size != segment.planned:
            break
        for cursor in log.cursors.values():
            if cursor.segment is segment:
                cursor.move_to(None, 0)
        if segment.users:
            break       # a cold read is under way there
        log.segments.pop(0)
        drop_segment(log, segment)
    segment = log.segments[0] if log.segments else None
    log.trim_at = segment.next_seq if segment is not None and not segment.active else (
        <uint64_t>-1)


cdef void drop_segment(Log log, Segment segment) noexcept:
    cdef job_t *job
    segment.unmap()
    if segment.path is None:
        return
    seal(log, segment)
    if segment.quarantined:
        os.rename(segment.path, segment.path + b'.quarantined')
        return
    job = log.shared.syncer.job(JOB_UNLINK, None)
    job.path = copy_path(segment.path)
    log.shared.syncer.submit(job)


cdef void seal_written(Log log) noexcept:
    """Close the files of full segments, once everything in them is on the disk."""
    cdef Segment segment
    for segment in log.segments:
        if segment.active:
            break
        if segment.size == segment.planned and (
                not segment.dirty or log.sync_policy == SYNC_NONE):
            seal(log, segment)


cdef void seal(Log log, Segment segment) noexcept:
    """Close the descriptor behind every sync that was asked for."""
    cdef job_t *job
    if segment.fd < 0:
        return
    job = log.shared.syncer.job(JOB_CLOSE, None)
    job.fd = segment.fd
    segment.fd = -1
    log.shared.syncer.submit(job)



cdef void housekeep(Log log) noexcept:
    """Once in a while: sync by period, give back files and mappings nobody needs."""
    cdef Cursor cursor
    cdef Segment segment
    if log.sync_policy != SYNC_NONE:
        log.sync()
        for cursor in log.cursors.values():
            if cursor.journal is not None:
                cursor.journal.sync()
    seal_written(log)
    for segment in log.segments:
        if segment.users == 0 and not segment.active and segment.path is not None:
            segment.unmap()
    if (log.idle_mark == log.next_seq and log.active is not None and log.cursors
            and log.active.size > log.shared.reclaim_bytes and log.waiting_bytes == 0):
        reclaim(log)
    log.idle_mark = log.next_seq


cdef void reclaim(Log log) noexcept:
    """An idle log whose records are all acked: let the space of its last segment go."""
    cdef Cursor cursor
    for cursor in log.cursors.values():
        if cursor.acks.floor < log.next_seq:
            return
    try:
        log.new_segment(log.next_seq, 0)
    except OSError as problem:
        log.refuse(problem)
        return
    trim(log)
