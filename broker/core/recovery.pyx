# cython: language_level=3
"""Opening a log from its folder: the last segment is scanned, the others are taken as they are.

A torn tail is cut (its bytes are kept beside the file); a damaged range in the middle is passed
over and stays in the file. Older segments are verified when somebody reads them.
"""
import os

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t
from posix.fcntl cimport O_RDONLY, O_RDWR

from broker.core.catalog cimport read_small
from broker.core.cursor cimport Cursor
from broker.core.facts cimport facts_of, facts_t
from broker.core.journal cimport OP_FLOOR, OP_PAUSE, Journal
from broker.core.log cimport Log
from broker.core.segment cimport FILE_HEADER_BYTES, Segment
from broker.core.shared cimport Shared
from broker.core.state cimport restore
from broker.core.upkeep cimport rest
from broker.core.vfs cimport vfs_close, vfs_open, vfs_truncate

from broker.core.files import (
    CURSOR_SUFFIX,
    CURSORS,
    DROPPED_SUFFIX,
    NEW_SUFFIX,
    SEGMENT_SUFFIX,
    SPARE,
    UNREADABLE_SUFFIX,
    GarbledMetaError,
    MetaError,
    escape,
    load_meta,
    unescape,
)
from broker.core.journal import read_journal
from broker.core.segment import check_header
from broker.core.settings import configure, valid

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *data, size_t n, int64_t offset)

cdef enum:
    TAIL_BYTES = 64     # zeros at the end of a file make it worth a look


def open_log(Shared shared, folder, policy_for, retention_for, list problems):
    """The log in `folder`; None when there is none in it. What was wrong goes to `problems`."""
    cdef Log log
    names = os.listdir(folder)
    paths = segment_paths(folder, names)
    meta = read_meta(folder, paths, problems)
    if meta is None:
        return None
    if not valid(meta.get('settings', {})):
        problems.append(f'{folder}: the settings of the log make no sense and are left out')
        del meta['settings']
    log = new_log(shared, folder, meta, policy_for, retention_for)
    open_segments(log, paths, problems)
    if CURSORS in names:
        open_cursors(log, problems)
    begin(log, meta)
    rest(log)
    return log


def open_known(Shared shared, list entry, policy_for, retention_for, list problems):
    """The log that the catalog has this entry of; its files are not opened now."""
    cdef Log log
    cdef Segment segment
    cdef uint64_t end = 0
    folder_name, _, meta, segments, cursors = entry
    folder = f'{shared.root}/{folder_name}'
    log = new_log(shared, folder, meta, policy_for, retention_for)
    for first_seq, next_seq, size, changed_ns in segments:
        segment = add_segment(log, f'{folder}/{first_seq:020d}{SEGMENT_SUFFIX}', first_seq)
        segment.next_seq = next_seq
        segment.size = size
        segment.planned = (segment.size + 7) & ~<size_t>7
        segment.cap = max(shared.segment_bytes, segment.planned)
        segment.changed_ns = changed_ns
    segment.active = True
    log.active = segment
    stand_at_end(log)
    for name, size, floor, paused in cursors:
        path = f'{folder}/{CURSORS}/{escape(name)}{CURSOR_SUFFIX}'
        if size:
            take_cursor(log, name, path, size, floor, paused)
        else:
            end = max(end, open_cursor(log, name, path, problems))
    go_behind(log, end, problems)
    begin(log, meta)
    return log


cdef Log new_log(Shared shared, folder, meta, policy_for, retention_for):
    """A log as its metadata say, without its records."""
    cdef Log log
    name = meta['name']
    log = Log(shared, name, folder, bytes.fromhex(meta['log_id']), policy_for(name))
    log.settings = meta.get('settings', {})
    configure(log, policy_for, retention_for)
    log.created_ns = meta['created_ns']
    log.face = meta.get('face')
    log.paused = meta['paused']
    return log


cdef object begin(Log log, meta):
    """All of the log is there: let it go on where it was."""
    if log.cursors and not log.paused:
        log.frontier = log.visible
    elif meta['frontier'] is not None:
        log.frontier = min(max(meta['frontier'], log.first_seq), log.visible)
    else:
        log.frontier = log.first_seq
    log.start_cursors()
    log.floor = min(meta.get('floor', 0), log.visible)     # what is below goes when it may
    # nothing is trimmed here: the housekeeping does, once it is known what readers of files hold


def read_meta(folder, list paths, list problems):
    """The log's metadata; made from its segments if it is lost, None if there are none either."""
    try:
        meta = load_meta(folder)
    except GarbledMetaError as problem:
        problems.append(str(problem))
        meta = None
    if meta is None and paths:
        problems.append(f'{folder}: metadata is made anew')
        meta = meta_from(paths, folder)
    return meta


def segment_paths(folder, names):
    """The segment files among the names in a folder with their first seqs, oldest first."""
    found = []
    for name in names:
        if name.endswith(SEGMENT_SUFFIX):
            stem = name[:-len(SEGMENT_SUFFIX)]
            if stem.isdigit():
                found.append((int(stem), f'{folder}/{name}'))
        elif name.endswith(DROPPED_SUFFIX) or name == SPARE:
            os.unlink(os.path.join(folder, name))
    return sorted(found)


def meta_from(paths, folder):
    """Metadata for a folder that has lost its own: segment headers tell the log's id."""
    for _, path in paths:
        with open(path, 'rb') as file:
            header = check_header(file.read(FILE_HEADER_BYTES), path)
        if header is not None:
            return {'name': unescape(os.path.basename(folder)), 'log_id': header[0].hex(),
                    'created_ns': 0, 'paused': False, 'frontier': None}
    raise MetaError(f'{folder}: no metadata and no readable segment header')


cdef object open_segments(Log log, list paths, list problems):
    """Take over the segment files; scan the last one and open it for appending."""
    cdef Segment segment
    cdef Segment before = None
    for position, (first_seq, path) in enumerate(paths):
        segment = add_segment(log, path, first_seq)
        take_file(segment, position == len(paths) - 1, problems)
        segment.cap = max(log.shared.segment_bytes, segment.size)
        if before is not None:
            before.next_seq = first_seq
        before = segment
    if before is not None:
        take_last(log, before, problems)
        stand_at_end(log)


cdef Segment add_segment(Log log, path, uint64_t first_seq):
    """The next file of a log; what is in it is said by the caller."""
    cdef Segment segment = Segment()
    segment.path = os.fsencode(path)
    segment.first_seq = segment.next_seq = first_seq
    segment.salt = log.salt
    log.segment_ids += 1
    segment.id = log.segment_ids
    segment.known_to_folder = True
    log.segments.append(segment)
    return segment


cdef void stand_at_end(Log log) noexcept:
    """The next record comes behind the last segment."""
    log.next_seq = log.visible = log.active.next_seq
    log.trim_at = (<Segment>log.segments[0]).next_seq if len(log.segments) > 1 else <uint64_t>-1


cdef object take_file(Segment segment, bint last, list problems):
    """Read size and file header: refuse a foreign version, report damage. The last one stays
    open for writing."""
    cdef int fd = -1
    cdef facts_t facts
    cdef ssize_t got
    cdef char head[FILE_HEADER_BYTES]
    cdef int error = vfs_open(segment.path, O_RDWR if last else O_RDONLY, &fd)
    path = os.fsdecode(segment.path)
    if error:
        raise OSError(error, os.strerror(error), path)
    try:
        error = facts_of(fd, &facts)
        got = pread(fd, head, FILE_HEADER_BYTES, 0)
        if error or got < 0:
            raise OSError(error or errno, os.strerror(error or errno), path)
        tail = b'' if last else os.pread(fd, TAIL_BYTES, max(0, <int64_t>facts.size - TAIL_BYTES))
    finally:
        if last:
            segment.fd = fd
        else:
            vfs_close(fd)
    segment.size = segment.planned = facts.size
    if tail and not tail.strip(b'\0'):
        find_end(segment, problems)
    segment.changed_ns = facts.modified_ns
    if check_header(head[:got], path) is None and not (last and got < <int>FILE_HEADER_BYTES):
        problems.append(f'{path}: file header is damaged')


cdef object find_end(Segment segment, list problems):
    """A full segment that ends with zeros: the process ended before they were cut, unless they are
    the last record's. It is taken to end where the records do."""
    cdef size_t size = segment.size
    segment.cap = size
    cut, _ = segment.scan()
    for start, end in segment.quarantined or ():
        problems.append(f'{os.fsdecode(segment.path)}: bytes {start} to {end} do not read')
    tail = (<char *>segment.map())[segment.size:size] if cut else b''
    segment.unmap()
    segment.ready = 0
    if tail.strip(b'\0'):
        segment.size = segment.planned = size       # it is no torn tail: who reads it will see


cdef object take_last(Log log, Segment segment, list problems):
    """Scan the last segment, cut a torn tail, and make it the active one."""
    cdef int error
    path = os.fsdecode(segment.path)
    if segment.size < FILE_HEADER_BYTES:
        # the process ended between making the file and writing its header
        with open(path, 'wb') as file:
            file.write(log.header(segment.first_seq))
        segment.size = segment.planned = FILE_HEADER_BYTES
    cut, bad = scan(segment)
    if bad:
        for start, end in segment.quarantined:
            log.shared.quarantined_ranges += 1
            log.shared.quarantined_bytes += end - start
            problems.append(f'{path}: bytes {start} to {end} do not read and are passed over')
    if cut:
        torn = keep_torn(path, segment.size, cut)
        error = vfs_truncate(segment.fd, <int64_t>segment.size)
        if error:
            raise OSError(error, os.strerror(error), path)
        if torn:
            log.shared.torn_bytes += cut
            problems.append(f'{path}: a torn tail of {cut} bytes was cut at {segment.size}')
    segment.active = True
    log.active = segment


cdef object scan(Segment segment):
    """As segment.scan; a small file is not mapped for it."""
    segment.base = read_small(segment.fd, segment.size)
    if segment.base == NULL:
        return segment.scan()
    try:
        return segment.scan()
    finally:
        segment.base = NULL


def keep_torn(path, offset, size):
    """Copy what is about to be cut, unless it is nothing but zeros; whether it was more."""
    with open(path, 'rb') as file:
        file.seek(offset)
        torn = file.read(size)
    if not torn.strip(b'\0'):
        return False
    with open(f'{path}.torn-{offset}', 'wb') as file:
        file.write(torn)
    return True


cdef object open_cursors(Log log, list problems):
    """Restore every cursor from its journal."""
    cdef uint64_t end = log.visible
    folder = f'{log.folder}/{CURSORS}'
    for file_name in sorted(os.listdir(folder)):
        path = f'{folder}/{file_name}'
        if file_name.endswith(NEW_SUFFIX):
            os.unlink(path)         # a snapshot that was not finished
        if file_name.endswith(CURSOR_SUFFIX):
            name = unescape(file_name[:-len(CURSOR_SUFFIX)])
            end = max(end, open_cursor(log, name, path, problems))
    go_behind(log, end, problems)


cdef object go_behind(Log log, uint64_t end, list problems):
    """Cursors know of records below `end`: their seqs must not be used again, even if the file has
    lost them."""
    if end > log.visible:
        problems.append(f'{log.folder}: records {log.visible} to {end - 1} are missing')
        log.skip_to(end)


cdef object take_cursor(Log log, str name, path, size_t journal_bytes, uint64_t floor,
                        bint paused):
    """A cursor that is done with all below `floor` and has seen nothing else."""
    cdef Cursor cursor = Cursor(log, name, log.first_seq, Journal(log.shared, path))
    restore(cursor, [(OP_FLOOR, floor, 0, 0), (OP_PAUSE, paused, 0, 0)])
    cursor.journal.adopt(journal_bytes)
    log.cursors[name] = cursor


cdef uint64_t open_cursor(Log log, str name, path, list problems) except? 0:
    """Restore a cursor from its journal; the seq behind the highest one it knows of."""
    cdef uint64_t end = log.visible
    cdef Cursor cursor
    ops, good, unread = read_journal(path)
    if unread:
        problems.append(f'{path}: {unread} bytes at the end do not read')
    cursor = Cursor(log, name, log.first_seq, Journal(log.shared, path))
    try:
        end = restore(cursor, ops)
    except OverflowError:
        problems.append(f'{path}: the journal makes no sense, its records are given again')
        cursor = Cursor(log, name, log.first_seq, Journal(log.shared, path))
        unread += good
        good = 0
    if good:
        if unread:
            keep_torn(path, good, unread)
        cursor.journal.adopt(good)
    elif unread:
        os.replace(path, path + UNREADABLE_SUFFIX)
    log.cursors[name] = cursor
    return end
