# cython: language_level=3
"""Bringing a log onto the disk: what waits for it shares one sync."""
import os

from broker.core.jobs cimport JOB_SYNC, JOB_SYNC_PATH, copy_path, job_t
from broker.core.log cimport SYNC_ALWAYS, Log
from broker.core.mishap cimport sync_failed
from broker.core.segment cimport Segment
from broker.core.upkeep cimport seal_written

from broker.core.files import META


cdef void sync(Log log) noexcept:
    """Bring what is written onto the disk; callers that wait share one sync."""
    cdef Segment segment
    cdef job_t *job
    if log.sync_jobs or not log.unsynced or log.folder is None or log.deleted:
        return
    log.unsynced = False
    log.sync_error = 0
    log.syncing_ticket = log.written_ticket
    for segment in log.segments:
        if segment.fd < 0 or not segment.dirty:
            continue
        segment.dirty = False
        job = log.shared.syncer.job(JOB_SYNC, log)
        job.fd = segment.fd
        job.tag = segment.id
        log.sync_jobs += 1
        log.shared.syncer.submit(job)
        if not segment.known_to_folder:
            segment.known_to_folder = True
            sync_path(log, log.folder)
    if not log.known_to_root:
        # after these a power cut cannot take the log away from under its records
        log.known_to_root = True
        sync_path(log, os.path.join(log.folder, META))
        sync_path(log, log.folder)
        sync_path(log, log.shared.root)


cdef void sync_path(Log log, path) noexcept:
    """Bring a file or a folder as such onto the disk, as part of this sync."""
    cdef job_t *job = log.shared.syncer.job(JOB_SYNC_PATH, log)
    job.path = copy_path(os.fsencode(path))
    log.sync_jobs += 1
    log.shared.syncer.submit(job)


cdef void synced(Log log, job_t *job) noexcept:
    """A job of the sync is done; with the last one, who waited for it is answered."""
    log.sync_jobs -= 1
    if job.error:
        log.sync_error = job.error
    elif job.kind == <int>JOB_SYNC:
        log.shared.note_sync(job.took_ns)
    if log.sync_jobs or log.deleted:
        return
    seal_written(log)
    if log.sync_error:
        sync_failed(log, log.sync_error)
    else:
        # with nothing written since, what lies behind the sync has failed: answer for it too
        log.synced_ticket = log.syncing_ticket if log.unsynced else log.written_ticket
        log.settle()
    if log.unsynced and log.sync_policy == SYNC_ALWAYS:
        sync(log)
