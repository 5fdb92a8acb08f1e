# cython: language_level=3
"""The catalog: one file that describes all logs as the last clean stop left them.

    TWINCATALOG <version> <crc32c, 8 hexadecimal digits> <bytes>\\n
    {"boot": ..., "number": ..., "logs": [[folder, seal, metadata, segments, cursors], ...]}

It spares the next start from inspecting each of very many logs. It is written last of all at a
stop, and removed first of all at a start. An entry is valid only if its seal still matches: a
checksum over what the file system reports about the log's folder and each file in it (inode, size,
times). Change times cannot be set back, so a file that was touched, replaced or copied is noticed;
the log is then opened by inspecting it, as is each log without an entry. After a restart of the
machine the catalog is ignored, because the files that it describes need not have reached the disk.

Logs with something to report (damage, failures) or with a long last file have no entry. Opening a
log from the catalog verifies nothing: its records are verified when they are read, like those of
older segments.
"""
import os

import orjson

from libc.stdint cimport uint64_t

from broker.engine.cursor.cursor cimport Cursor
from broker.runtime.vfs cimport stat_t, vfs_stat_at
from broker.engine.log.log cimport Log
from broker.engine.log.policy cimport RETENTION_OWNED
from broker.engine.log.record cimport FILE_HEADER_BYTES
from broker.engine.log.segment cimport SMALL_BYTES, Segment

from broker.base.durable import NEW_SUFFIX
from broker.engine.log.files import CURSOR_SUFFIX, CURSORS, META, escape, meta_of
from broker.engine.log.record import crc32c

FILE = '.catalog'       # no log's folder begins with a dot
VERSION = 1
LOGS_MIN = 100          # fewer logs are opened quickly anyway
BOOT_ID = '/proc/sys/kernel/random/boot_id'

# --- writing


def entry_of(Log log):
    """The catalog entry of a log that was just closed, without its seal. None: the next start must
    inspect the log."""
    cdef Segment segment
    cdef Cursor cursor
    cdef list segments = [], cursors = []
    if log.folder is None or log.last_error or log.waiting_bytes or log.next_seq != log.visible:
        return None
    if log.policy.retention_mode == RETENTION_OWNED:
        return None         # its owner reads all of it anyway
    if log.delays is not None and len(log.delays):
        return None         # a scan finds them again
    for segment in log.segments:
        if segment.quarantined or segment.zeroed or not segment.is_written():
            return None
        if os.path.basename(segment.path) != segment_name(segment.first_seq):
            return None
        segments.append((segment.first_seq, segment.next_seq, segment.size, segment.changed_ns))
    segment = log.active
    if segment is None or segment.bare or segment.next_seq != log.visible or not (
            FILE_HEADER_BYTES <= segment.size <= <size_t>SMALL_BYTES):
        return None
    for cursor in log.cursors.values():
        if cursor.journal is not None:
            cursors.append((cursor.name, *state_of(cursor)))
    meta = meta_of(log, log.retention.floor)
    if log.sync.unsynced:
        meta['unsynced'] = True     # the policy at that time did not require a sync
    return [os.path.basename(log.folder), 0, meta, segments, cursors]


cdef tuple state_of(Cursor cursor):
    """(bytes of the journal, floor, paused). 0 bytes: not everything is in the journal."""
    # A closed cursor has forgotten its deliveries, so its positions must account for them.
    if cursor.acks.count or cursor.next_seq != cursor.acks.floor or cursor.ahead:
        return 0, 0, False
    return cursor.journal.file_bytes, cursor.acks.floor, cursor.paused


def is_written(Log log):
    """Whether everything about the log's cursors is in their journals."""
    cdef Cursor cursor
    for cursor in log.cursors.values():
        if cursor.journal is not None and (
                cursor.journal.last_error or cursor.journal.done != cursor.journal.handed):
            return False
    return True


def save(root, list entries, list problems):
    """Write the catalog with these entries. OSError. Logs that had problems at the start are left
    out, so that the problems are reported again."""
    cdef int fd, folder_fd
    if len(entries) < LOGS_MIN:
        return
    reported = {problem[len(root) + 1:].replace(':', '/').partition('/')[0] for problem in problems}
    path = os.path.join(root, FILE)
    folder_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        kept = []
        for entry in entries:
            entry[1] = seal_of(folder_fd, entry)
            if entry[1] and entry[0] not in reported:
                kept.append(entry)
        fd = os.open(path + NEW_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, 'wb') as file:
                file.write(page_of(kept, os.fstat(fd).st_ino))
                file.flush()
                os.fsync(fd)
            os.replace(path + NEW_SUFFIX, path)
        except OSError:
            os.unlink(path + NEW_SUFFIX)
            raise
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


cdef bytes page_of(list entries, number):
    body = orjson.dumps({'boot': boot_id(), 'number': number, 'logs': entries})
    return b'TWINCATALOG %d %08x %d\n%s' % (VERSION, crc32c(body), len(body), body)


def boot_id():
    """The id of this boot of the machine; None: unknown."""
    try:
        with open(BOOT_ID, encoding='ascii') as file:
            return file.read().strip() or None
    except OSError:
        return None


# --- reading


def load_and_remove(root):
    """The entries of the catalog by folder; the catalog is removed. OSError: it cannot be removed,
    and must not be trusted."""
    cdef int fd
    path = os.path.join(root, FILE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    with os.fdopen(fd, 'rb') as file:
        data = file.read()
        number = os.fstat(fd).st_ino
    os.unlink(path)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return {entry[0]: entry for entry in entries_in(data, number)}


def entries_in(bytes data, number):
    """The entries of an intact catalog of this version that was not copied; otherwise none."""
    head, _, body = data.partition(b'\n')
    if head != b'TWINCATALOG %d %08x %d' % (VERSION, crc32c(body), len(body)):
        return []
    page = orjson.loads(body)
    boot = boot_id()
    return page['logs'] if page['number'] == number and boot and page['boot'] == boot else []


def is_still_so(int folder_fd, list entry):
    """Whether the log has not been touched since its entry was written."""
    seal = seal_of(folder_fd, entry)
    return seal != 0 and seal == entry[1]


cdef uint64_t seal_of(int folder_fd, list entry) except? 0:
    """The checksum of everything that the file system reports about the log; 0: something is
    missing."""
    cdef uint64_t sum = 0
    cdef bytes folder = os.fsencode(entry[0])
    cdef bytes name
    cdef list names = [b'', META.encode()]
    for segment in entry[3]:
        names.append(segment_name(segment[0]))
    if entry[4]:
        names.append(CURSORS.encode())
        for cursor in entry[4]:
            names.append(f'{CURSORS}/{escape(cursor[0])}{CURSOR_SUFFIX}'.encode())
    for name in names:
        if not mix_in(&sum, folder_fd, folder + b'/' + name):
            return 0
    return sum or 1


cdef bint mix_in(uint64_t *sum, int folder_fd, const char *path) noexcept nogil:
    cdef stat_t found
    if vfs_stat_at(folder_fd, path, &found):
        return False
    sum[0] = mixed(sum[0], found.number)
    sum[0] = mixed(sum[0], found.size)
    sum[0] = mixed(sum[0], <uint64_t>found.modified_ns)
    sum[0] = mixed(sum[0], <uint64_t>found.changed_ns)
    return True


cdef inline uint64_t mixed(uint64_t sum, uint64_t value) noexcept nogil:
    """The finalizer of splitmix64: each bit of both inputs affects each bit of the result."""
    sum = (sum ^ value) + <uint64_t>0x9E3779B97F4A7C15
    sum = (sum ^ (sum >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    sum = (sum ^ (sum >> 27)) * <uint64_t>0x94D049BB133111EB
    return sum ^ (sum >> 31)


cdef bytes segment_name(uint64_t first_seq):
    return b'%020d.seg' % first_seq
