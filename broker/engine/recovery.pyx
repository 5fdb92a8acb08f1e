# cython: language_level=3
"""Opens a log from its folder: scans the last segment, and takes the others as they are.

A torn tail is cut, and its bytes are kept beside the file. A damaged range in the middle is skipped
and stays in the file. Older segments are verified when they are read.
"""
import contextlib
import os

from libc.errno cimport EIO, EMFILE, ENFILE, ENOMEM, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDONLY, O_RDWR

from broker.engine.cursor.cursor cimport Cursor
from broker.engine.cursor.journal cimport OP_FLOOR, OP_PAUSE, Journal
from broker.engine.log.log cimport Log
from broker.engine.log.policy cimport RETENTION_OWNED, SYNC_ALWAYS, LogPolicy
from broker.engine.log.record cimport (
    FILE_HEADER_BYTES, RECORD_HEADER_BYTES, older, record_get, salt_of, stored_t)
from broker.engine.log.segment cimport MARK_BYTES, Segment, read_small
from broker.engine.state cimport EngineState
from broker.runtime.mapping cimport faults_of, read_at
from broker.runtime.vfs cimport (
    stat_t, vfs_close, vfs_open, vfs_stat, vfs_truncate, vfs_write)

from broker.engine.log.files import (
    CURSOR_SUFFIX,
    CURSORS,
    DROPPED_SUFFIX,
    META,
    META_BYTES,
    NEW_SUFFIX,
    SEGMENT_SUFFIX,
    SPARE,
    UNREADABLE_SUFFIX,
    GarbledMetaError,
    MetaError,
    escape,
    free_name,
    save_torn_tail,
    save_unread_end,
    load_meta,
    put_aside,
    retention_in,
    subjects_in,
    unescape,
)
from broker.engine.health import RECORDS
from broker.engine.log.policy import OWNED, plain_policy
from broker.engine.cursor.journal import read_journal
from broker.engine.log.record import check_header, follows, header_facts, is_sparse, is_used
from broker.engine.settings import configure, valid
from broker.base.durable import sync_path

cdef enum:
    TAIL_BYTES = MARK_BYTES     # this many zeros at the end of a file make it worth examining
    SPARE_LOOK_BYTES = 1 << 16      # a spare file that begins with this many zeros has no records
    LOOK_BYTES = 1 << 20    # read at a time when a file is searched
    LATER_MAX = 1 << 26     # largest distance of a header's seq from the seq in the file's name
    READS_MORE = 2          # how often a journal that the disk cannot read is read again


def open_log(EngineState shared, folder, sync_for, retention_for, list problems):
    """The log in `folder`. None: there is none. What was wrong is added to `problems`."""
    cdef Log log
    take_spare(folder, problems)
    names = os.listdir(folder)
    paths = segment_paths(folder, names)
    meta = read_meta(folder, names, paths, problems)
    if meta is None:
        return None
    if escape(meta['name']) != os.path.basename(folder):
        raise MetaError(f'{folder}: the metadata belong to the log {meta["name"]!r}')
    if not valid(meta.get('settings', {})):
        problems.append(f'{folder}: the settings of the log make no sense and are left out')
        del meta['settings']
    log = new_log(shared, folder, meta, sync_for, retention_for)
    try:
        open_segments(log, paths, problems)
        if CURSORS in names and log.policy.retention_mode != RETENTION_OWNED:
            open_cursors(log, problems)
        log.recovered(meta)
    except BaseException:
        log.detach()
        raise
    if meta.pop('made', False):
        try:
            log.save(durable=True)
        except OSError as problem:
            problems.append(f'{folder}: the metadata cannot be saved: {problem}')
    log.release_idle()
    log.sync.found_unsynced()
    return log


def open_known(EngineState shared, list entry, sync_for, retention_for, list problems):
    """The log of this entry in the catalog; its files are not opened now."""
    cdef Log log
    cdef Segment segment
    cdef uint64_t end = 0
    folder_name, _, meta, segments, cursors = entry
    folder = f'{shared.root}/{folder_name}'
    log = new_log(shared, folder, meta, sync_for, retention_for)
    for first_seq, next_seq, size, changed_ns in segments:
        segment = log.add_segment(f'{folder}/{first_seq:020d}{SEGMENT_SUFFIX}', first_seq)
        segment.next_seq = next_seq
        segment.size = size
        segment.planned = (segment.size + 7) & ~<size_t>7
        segment.cap = max(shared.segment_bytes, segment.planned)
        segment.changed_ns = changed_ns
    log.move_to_end()
    try:
        for name, size, floor, paused in cursors:
            path = f'{folder}/{CURSORS}/{escape(name)}{CURSOR_SUFFIX}'
            if size:
                take_cursor(log, name, path, size, floor, paused)
            else:
                end = max(end, open_cursor(log, name, path, problems))
        continue_after(log, end, problems)
        log.recovered(meta)
    except BaseException:
        log.detach()
        raise
    if meta.get('unsynced'):
        log.sync.found_unsynced()
    return log


cdef Log new_log(EngineState shared, folder, meta, sync_for, retention_for):
    """A log with these metadata, without its records."""
    cdef Log log
    cdef LogPolicy policy
    name, subjects = meta['name'], subjects_in(meta)
    policy = plain_policy(sync_for(name), retention_in(meta))
    if subjects is not None:
        policy = policy.with_subjects(subjects)
    log = Log(shared, name, folder, bytes.fromhex(meta['log_id']), policy)
    log.restore(meta)
    configure(log, sync_for, retention_for)
    return log


def read_meta(folder, names, list paths, list problems):
    """The log's metadata, recovered from its other files if they are lost or unreadable.

    None: there is no log in the folder. A log that was created just before a power cut may have
    only empty files or parts of records: no publisher had an answer, and its folder is put aside.
    MetaError: there are records that cannot be read without the metadata.
    """
    garbled = False
    try:
        meta = load_meta(folder)
    except GarbledMetaError as problem:
        problems.append(str(problem))
        garbled = True
        meta = None
    if meta is not None:
        return meta
    if paths:
        meta = meta_from(paths, folder)
        if meta is None and holds_records(paths):
            if not never_synced(folder, paths):
                raise MetaError(f'{folder}: no metadata and no readable segment header')
            garbled = True
            for _, path in paths:
                os.rename(path, free_name(path + UNREADABLE_SUFFIX))
            paths.clear()
    if meta is None and knows_cursors(folder, names):
        # Without records, any id is as good as the lost one.
        meta = meta_for(folder, os.urandom(16))
    if meta is not None:
        if meta['face'] is None and CURSORS in names:
            # The names of its cursors suggest its protocol, but not reliably, so an operator has to
            # claim it.
            meta['face'] = protocol_of_cursors(f'{folder}/{CURSORS}')
            meta['unclaimed'] = meta['unclaimed'] or meta['face'] is not None
        if garbled:
            with contextlib.suppress(FileNotFoundError):
                os.rename(f'{folder}/{META}', free_name(f'{folder}/{META}{UNREADABLE_SUFFIX}'))
        problems.append(f'{folder}: the metadata are made again from what is there' + (
            '; nothing of the log is dropped before it is claimed' if meta['unclaimed'] else ''))
    elif paths or garbled or CURSORS in names:
        aside = put_aside(folder)
        problems.append(f'{folder}: nothing was stored there yet; it is put aside as {aside}')
    return meta


def protocol_of_cursors(cursors):
    """The protocol that has named a cursor PROTOCOL:NAME; other names have no colon."""
    for name in os.listdir(cursors):
        protocol, colon, _ = unescape(name).partition(':')
        if colon and name.endswith(CURSOR_SUFFIX):
            return protocol
    return None


def never_synced(folder, paths):
    """Whether the log was never synced: its metadata and the headers of its segments are empty or
    all zeros. OSError.

    That is what a power cut leaves of a log without answered publishes: the first sync of a log
    makes its metadata and the header of its file durable, even if they are damaged later.
    """
    with contextlib.suppress(FileNotFoundError), open(f'{folder}/{META}', 'rb') as file:
        if file.read(META_BYTES).strip(b'\0'):
            return False
    for _, path in paths:
        with open(path, 'rb', buffering=0) as file:
            if file.read(FILE_HEADER_BYTES).strip(b'\0'):
                return False
    return True


def holds_records(paths):
    """Whether anything but zeros follows the header of a segment. OSError."""
    for _, path in paths:
        with open(path, 'rb', buffering=0) as file:
            file.seek(FILE_HEADER_BYTES)
            while data := file.read(LOOK_BYTES):
                if data.strip(b'\0'):
                    return True
    return False


def knows_cursors(folder, names):
    """Whether the journal of a cursor has content. OSError, FormatError."""
    if CURSORS not in names:
        return False
    cursors = f'{folder}/{CURSORS}'
    return any(
        read_journal(f'{cursors}/{name}')[1]
        for name in os.listdir(cursors) if name.endswith(CURSOR_SUFFIX))


def segment_paths(folder, names):
    """The segment files among the names in a folder with their first seqs, oldest first."""
    found = []
    for name in names:
        if name.endswith(SEGMENT_SUFFIX):
            stem = name[:-len(SEGMENT_SUFFIX)]
            if stem.isdigit():
                found.append((int(stem), f'{folder}/{name}'))
        elif name.endswith((DROPPED_SUFFIX, SEGMENT_SUFFIX + NEW_SUFFIX)):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))   # otherwise the next start tries again
    return sorted(found)


def take_spare(folder, list problems):
    """Resolve a spare file: give it its name back if it has become a segment; remove it if it is
    empty or was a segment; put it aside if the disk cannot read it.

    A power cut may undo the rename of a spare file and keep what was written to it. OSError.
    """
    path = os.path.join(folder, SPARE)
    if not os.path.lexists(path):
        return
    head = begin_of(path)
    if head is not None and not head.strip(b'\0'):
        os.unlink(path)
        return
    header = None if head is None else check_header(head, path)
    named = path + UNREADABLE_SUFFIX
    others = segment_paths(folder, os.listdir(folder))
    log_id = log_id_of(folder, others)
    seqs = {seq for seq, _ in others}
    if header is not None and header[0] == log_id and seqs and (
            header[1] < min(seqs) or has_mark(head) and (
                header[1] in seqs or end_of(salt_of(header[0]), (header[1], path)) == header[1])):
        # It was dropped for reuse, or was about to be used and has no record. The previous segment
        # may have used its seqs since.
        os.unlink(path)
        return
    if header is not None and header[0] == (log_id or header[0]) and header[1] not in seqs:
        named = os.path.join(folder, f'{header[1]:020d}{SEGMENT_SUFFIX}')
    elif os.path.exists(named):
        named = f'{path}.{os.urandom(8).hex()}{UNREADABLE_SUFFIX}'
    if head is None:
        problems.append(f'{path}: the disk cannot read it; it is now {named}')
    else:
        sync_path(path)
    os.rename(path, named)
    sync_path(folder)


cdef object begin_of(path):
    """The beginning of a file, at most SPARE_LOOK_BYTES. None: the disk cannot read it. OSError."""
    cdef char head[SPARE_LOOK_BYTES]
    cdef ssize_t got = -1
    cdef int fd = -1
    cdef int error = vfs_open(os.fsencode(path), O_RDONLY, &fd)
    if not error:
        got = read_at(fd, head, SPARE_LOOK_BYTES, 0)
        error = errno if got < 0 else 0
        vfs_close(fd)
    if error == EIO:
        return None
    if error:
        raise OSError(error, os.strerror(error), path)
    return head[:got]


cdef object log_id_of(folder, paths):
    """The id of the log in a folder, from its metadata or another segment; None = unknown."""
    try:
        meta = load_meta(folder)
    except MetaError:
        meta = None
    if meta is not None:
        return bytes.fromhex(meta['log_id'])
    for _, path in paths:
        header = check_header(head_of(path), path)
        if header is not None:
            return header[0]
    return None


cdef bytes head_of(path):
    """The file header; empty if it is unreadable."""
    cdef char head[FILE_HEADER_BYTES]
    cdef ssize_t got = 0
    with open(path, 'rb', buffering=0) as file:
        got = read_at(file.fileno(), head, FILE_HEADER_BYTES, 0)
    return head[:max(<ssize_t>0, got)]


def meta_from(paths, folder):
    """Metadata for a folder that has lost its own, from the segment headers, which have the log's
    id and its protocol. A log that had settings of its own, or whose headers do not say, is
    unclaimed. None: no header is readable."""
    for _, path in reversed(paths):
        head = head_of(path)
        header = check_header(head, path)
        if header is not None:
            protocol, own = header_facts(head) or (None, True)
            meta = meta_for(folder, header[0], protocol, own)
            if is_sparse(head):
                meta['retention'] = OWNED
            return meta
    return None


def meta_for(folder, bytes log_id, protocol=None, bint unclaimed=False):
    """Metadata of a log of which nothing else is known."""
    return {'name': unescape(os.path.basename(folder)), 'log_id': log_id.hex(),
            'created_ns': 0, 'paused': False, 'frontier': None, 'face': protocol,
            'unclaimed': unclaimed, 'made': True}


cdef object open_segments(Log log, list paths, list problems):
    """Take over the segment files; scan the last one and open it for appending."""
    cdef Segment segment
    cdef Segment before = None
    if log.policy.retention_mode != RETENTION_OWNED:    # its files may have gaps between them
        remove_files_begun_early(log, paths)
    for position, (first_seq, path) in enumerate(paths):
        segment = log.add_segment(path, first_seq)
        later = take_file(segment, position == len(paths) - 1, problems)
        if 0 < later <= log.shared.window_max and log.policy.retention_mode != RETENTION_OWNED:
            log.segments.clear()
            name_by_headers(log.folder, problems)
            open_segments(log, segment_paths(log.folder, os.listdir(log.folder)), problems)
            return
        segment.cap = max(log.shared.segment_bytes, segment.size)
        if before is not None:
            before.next_seq = first_seq
        before = segment
    if before is not None:
        take_last(log, before, problems)
        log.move_to_end()


cdef bint is_of_later(bytes head, header, first_seq) except -1:
    """Whether the segment file named after `first_seq` has the header of a later segment, which
    reused it. A header that is too far away is damage, because cursors would have to skip all seqs
    in between."""
    return header is not None and is_used(head) and (
        first_seq < header[1] <= first_seq + <uint64_t>LATER_MAX)


def name_by_headers(folder, list problems):
    """Rename segment files that have the headers of later segments to the names of those.

    They were reused, and a power cut has undone the renames. All cursors had finished their earlier
    records. OSError.
    """
    found = []
    for first_seq, path in segment_paths(folder, os.listdir(folder)):
        head = head_of(path)
        header = check_header(head, path)
        if is_of_later(head, header, first_seq):
            found.append((header[1], path))
    # The last one first, because its old name may be the new name of another one.
    for first_seq, path in sorted(found, reverse=True):
        named = f'{folder}/{first_seq:020d}{SEGMENT_SUFFIX}'
        if os.path.lexists(named):
            named = free_name(path + UNREADABLE_SUFFIX)     # not the work of a power cut
        problems.append(f'{path}: the header is that of segment {first_seq}; it is now {named}')
        sync_path(path)
        os.rename(path, named)
    if found:
        sync_path(folder)


def settle_names(folder):
    """Give the segment files of a log the names that they get when it is opened. Returns what was
    wrong. OSError."""
    problems = []
    take_spare(folder, problems)
    name_by_headers(folder, problems)
    return problems


cdef object remove_files_begun_early(Log log, list paths):
    """Remove last files without records if the previous file ends below their seqs.

    The process ended after it had begun such a file and before it had written the end of the
    previous one. After a kill, no publisher had an answer for the missing records; after a power
    cut, only publishers that required no sync had. The seqs are used again: with the file in place,
    the new records would count as waiting, and then as lost. OSError.
    """
    found = len(paths)
    while len(paths) > 1:
        first_seq, path = last = paths.pop()
        if not is_without_its_record(log, last) or (
                end_of(log.salt, paths[len(paths) - 1]) >= first_seq):
            paths.append(last)
            break
        os.unlink(path)
    if len(paths) < found:
        sync_path(log.folder)   # its name must not return when those seqs are in use


cdef bint is_without_its_record(Log log, file) except -1:
    """Whether a segment file has no record, and either no header or one that says that no seq was
    left out before it. False if a part of it is unreadable."""
    first_seq, path = file
    try:
        head = head_of(path)
        header = check_header(head, path)
        if header is not None and header[1] < first_seq:
            return end_of(log.salt, file) == first_seq   # the header did not reach the disk
        if header is not None and is_used(head):
            return follows(head) and not begins_with(path, first_seq) and (
                end_of(log.salt, file) == first_seq)
        if holds_records([file]):
            return False
        return not head.strip(b'\0') or (header is not None and follows(head))
    except OSError:
        return False


cdef bint begins_with(path, first_seq) except -1:
    """Whether a segment file has a header of its own first record, valid or not. OSError."""
    with open(path, 'rb', buffering=0) as file:
        head = file.read(FILE_HEADER_BYTES + RECORD_HEADER_BYTES)
    seq = head[FILE_HEADER_BYTES + 8:FILE_HEADER_BYTES + 16]
    return int.from_bytes(seq, 'little') == first_seq


def has_mark(bytes head):
    """Whether the mark of a used file follows its header, which means that it has no records.
    `head`: the beginning of the file."""
    return not head[FILE_HEADER_BYTES:FILE_HEADER_BYTES + MARK_BYTES].strip(b'\0')


cdef uint64_t end_of(uint32_t salt, file) except 0:
    """The seq after the last record of a segment file. A large number if more than zeros follow it,
    or if it is damaged, because acknowledged records may be there. OSError."""
    cdef Segment segment = Segment()
    cdef size_t size
    first_seq, path = file
    segment.path = os.fsencode(path)
    segment.first_seq = segment.next_seq = first_seq
    segment.salt = salt
    head = head_of(path)
    segment.sparse = check_header(head, path) is not None and is_sparse(head)
    take_file(segment, last=False, problems=[])
    if segment.size > FILE_HEADER_BYTES:
        segment.cap = size = segment.size
        try:
            cut, bad = segment.scan()
            if bad or torn_bytes(segment, cut):
                return <uint64_t>-1
        finally:
            segment.unmap()
    return segment.next_seq


cdef size_t torn_bytes(Segment segment, size_t cut) except <size_t>-1:
    """How many of the `cut` bytes after the records of a scanned and mapped segment may belong to a
    torn record: not zeros, and not the rest of an older segment."""
    cdef const char *base = segment.map()
    cdef size_t end = segment.size + cut, start = min(segment.planned, end)
    cdef bytes tail
    if segment.used_to:
        tail = base[segment.size:min(end, start + MARK_BYTES)]
        if not tail.strip(b'\0'):
            return 0
        end = older(base, end, start, segment.salt, segment.first_seq)
    tail = base[segment.size:end]
    return len(tail) if tail.strip(b'\0') else 0


cdef object take_file(Segment segment, bint last, list problems):
    """Read the size and the file header: refuse an unknown version, report damage. The last file
    stays open for writing. Returns the distance from the name to the seq in the header (see
    is_of_later); 0 = equal."""
    cdef int fd = -1
    cdef stat_t found
    cdef ssize_t got = 0
    cdef ssize_t tail_len = 0
    cdef char head[FILE_HEADER_BYTES]
    cdef char end[TAIL_BYTES]
    cdef int error = vfs_open(segment.path, O_RDWR if last else O_RDONLY, &fd)
    path = os.fsdecode(segment.path)
    if error:
        raise OSError(error, os.strerror(error), path)
    try:
        error = vfs_stat(fd, &found)
        if error:
            raise OSError(error, os.strerror(error), path)
        got = read_at(fd, head, FILE_HEADER_BYTES, 0)
        if got < 0 and errno != EIO:
            raise OSError(errno, os.strerror(errno), path)
        # An unreadable sector is damage like any other: a scan or a reader will find its extent.
        got = max(<ssize_t>0, got)
        if not last:
            tail_len = max(<ssize_t>0, read_at(
                fd, end, TAIL_BYTES, max(<int64_t>0, <int64_t>found.size - TAIL_BYTES)))
    finally:
        if last:
            segment.fd = fd
        else:
            vfs_close(fd)
    segment.size = segment.planned = found.size
    segment.changed_ns = found.modified_ns
    header = check_header(head[:got], path)
    has_older_header = header is not None and header[1] < segment.first_seq  # left by a power cut
    if has_older_header or header is not None and is_used(head[:got]):
        segment.used_to = segment.size
    tail = end[:tail_len]
    if tail and not tail.strip(b'\0'):
        find_end(segment)
    # The process may have ended, or the disk been full, before the header was written.
    segment.bare = last if has_older_header else (
        last or segment.size <= FILE_HEADER_BYTES) and (
        segment.size < FILE_HEADER_BYTES or (got > 0 and not head[:got].strip(b'\0')))
    if not (last and segment.bare) and (header is None or has_older_header):
        problems.append(f'{path}: file header is damaged')
    if is_of_later(head[:got], header, segment.first_seq):
        return header[1] - segment.first_seq
    return 0


cdef object find_end(Segment segment):
    """Find the end of a full segment that ends with zeros. The process ended before they were cut,
    unless they belong to the last record. The segment ends with its records."""
    cdef size_t size = segment.size
    segment.cap = size
    cut, _ = segment.scan()
    if torn_bytes(segment, cut):
        segment.size = segment.planned = size  # it is not a torn tail; readers will find the damage
    segment.unmap()
    segment.ready = 0
    segment.quarantined = None      # readers will find and report it


cdef object take_last(Log log, Segment segment, list problems):
    """Scan the last segment, cut a torn tail, and make the segment active."""
    path = os.fsdecode(segment.path)
    if segment.size < FILE_HEADER_BYTES:
        segment.size = segment.planned = FILE_HEADER_BYTES
    cut, bad = scan(segment)
    if bad and log.policy.sync_mode != SYNC_ALWAYS and is_unwritten(segment):
        segment.unwritten = len(segment.quarantined)
        for start, end in segment.quarantined:
            problems.append(f'{path}: bytes {start} to {end} were not written before the power '
                            'was cut')
    elif bad:
        log.shared.health.add(RECORDS, log.name, 'some do not read and are passed over')
        for start, end in segment.quarantined:
            log.shared.quarantined_ranges += 1
            log.shared.quarantined_bytes += end - start
            problems.append(f'{path}: bytes {start} to {end} do not read and are passed over')
    if cut:
        try:
            cut_torn(log, segment, cut, problems)
        except OSError as problem:
            leave_torn_tail(log, segment, cut, problem, problems)
    if segment.bare and segment.planned > segment.start():
        segment.bare = segment.used_to > 0
        problems.append(f'{path}: file header is damaged')
    segment.used_to = 0
    if segment.bare:
        write_header(log, segment, problems)
    if segment.delayed and log.policy.retention_mode != RETENTION_OWNED:
        find_delays(log, segment)
    if faults_of(&segment.file):
        segment.stop_appends()


cdef bint is_unwritten(Segment segment) except -1:
    """Whether `has_older` applies to each unreadable range of a scanned segment."""
    cdef size_t start, end
    for start, end in segment.quarantined:
        if not segment.has_older(start, end):
            return False
    return True


cdef object cut_torn(Log log, Segment segment, size_t cut, list problems):
    """Cut the bytes after the last valid record. A copy is kept, unless they are zeros or the rest
    of an older segment. OSError: they are still in the file."""
    cdef int error
    cdef size_t torn = torn_bytes(segment, cut)
    path = os.fsdecode(segment.path)
    if torn:
        save_torn_tail(path, segment.size, torn)
    error = vfs_truncate(segment.fd, <int64_t>segment.size)
    if error and (torn or segment.used_to):
        raise OSError(error, os.strerror(error), path)
    segment.zeroed = error != 0     # zeros do no harm and are cut later
    if torn:
        log.shared.torn_bytes += torn
        problems.append(f'{path}: a torn tail of {torn} bytes was cut at {segment.size}')


cdef object leave_torn_tail(Log log, Segment segment, size_t cut, problem, list problems):
    """Keep a torn tail that can be neither copied nor cut, because the disk is full: the file gets
    no more records, and is not removed when all cursors have finished it. OSError."""
    cdef int error
    path = os.fsdecode(segment.path)
    problems.append(f'{path}: a torn tail of {cut} bytes stays at {segment.size}: '
                    f'{problem.strerror or problem}')
    if segment.planned > segment.start():
        segment.quarantine(segment.size, segment.size + cut)
        log.shared.quarantined_ranges += 1
        log.shared.quarantined_bytes += cut
        segment.stop_appends()
        return
    # It has no valid record: the new file would have the same name.
    os.rename(path, free_name(f'{path}.torn-0'))
    vfs_close(segment.fd)
    segment.fd = -1
    error = vfs_open(segment.path, O_RDWR | O_CREAT | O_EXCL, &segment.fd)
    if error:
        raise OSError(error, os.strerror(error), path)
    segment.bare = True


cdef object write_header(Log log, Segment segment, list problems):
    """Write the header of a file without records; on a full disk, the first append does it."""
    cdef bytes head = log.header(segment.first_seq)
    cdef int error = vfs_write(segment.fd, head, FILE_HEADER_BYTES, 0)
    segment.bare = error != 0
    if error:
        problems.append(f'{os.fsdecode(segment.path)}: no header yet: {os.strerror(error)}')


cdef object find_delays(Log log, Segment segment):
    """Tell the log which records of a segment are delayed."""
    cdef const char *base = segment.map()
    cdef size_t at = segment.start(), step
    cdef stored_t s
    while at < segment.size:
        at = segment.skip_quarantined(at)
        if at >= segment.size:
            break
        step = record_get(base + at, segment.size - at, segment.salt, check=False, out=&s)
        if step == 0:
            break
        if s.not_before_ns > log.shared.turn.wall_ns:
            log.delay(s.rec.seq, s.not_before_ns)
        at += step


cdef object scan(Segment segment):
    """Same as segment.scan; a small file is read instead of mapped."""
    segment.base = read_small(segment.fd, segment.size)
    if segment.base == NULL:
        return segment.scan()
    try:
        return segment.scan()
    finally:
        segment.base = NULL


cdef object open_cursors(Log log, list problems):
    """Restore every cursor from its journal."""
    cdef uint64_t end = log.visible
    folder = f'{log.folder}/{CURSORS}'
    for file_name in sorted(os.listdir(folder)):
        path = f'{folder}/{file_name}'
        if file_name.endswith(NEW_SUFFIX):
            with contextlib.suppress(OSError):
                os.unlink(path)     # an unfinished snapshot
        if file_name.endswith(CURSOR_SUFFIX):
            name = unescape(file_name[:-len(CURSOR_SUFFIX)])
            end = max(end, open_cursor(log, name, path, problems))
    continue_after(log, end, problems)


cdef object continue_after(Log log, uint64_t end, list problems):
    """Continue after `end`: cursors know records below it, so their seqs must not be used again,
    even if the files have lost them."""
    if end > log.visible:
        problems.append(f'{log.folder}: records {log.visible} to {end - 1} are missing')
        try:
            log.skip_to(end)
        except OSError as problem:
            # Nothing can be appended now, but consumers can continue, and free space.
            if log.active is not None:
                log.active.stop_appends()
            log.sync.refuse(problem)


cdef object take_cursor(Log log, str name, path, size_t journal_bytes, uint64_t floor,
                        bint paused):
    """A cursor that has finished all records below `floor` and has read no others."""
    cdef Cursor cursor = Cursor(log, name, log.first_seq, Journal(log.shared, path))
    cursor.restore([(OP_FLOOR, floor, 0, 0), (OP_PAUSE, paused, 0, 0)])
    cursor.journal.adopt(journal_bytes)
    log.add_cursor(cursor)


def read_surely(path):
    """Same as read_journal, but an unreadable file is read again: without its journal, a cursor
    delivers finished records once more. OSError, FormatError."""
    for _ in range(READS_MORE):
        try:
            return read_journal(path)
        except OSError as problem:
            if problem.errno in (EMFILE, ENFILE, ENOMEM):
                raise
    return read_journal(path)


cdef uint64_t open_cursor(Log log, str name, path, list problems) except? 0:
    """Restore a cursor from its journal. Returns the seq after the highest one that it knows."""
    cdef uint64_t end = log.visible
    cdef Cursor cursor
    try:
        ops, good, unread = read_surely(path)
    except OSError as problem:
        if problem.errno in (EMFILE, ENFILE, ENOMEM):
            raise       # not the file's fault
        problems.append(f'{problem}: the journal is put aside, its records are redelivered')
        ops, good, unread = [], 0, 1
    else:
        if unread:
            problems.append(f'{path}: {unread} bytes at the end do not read')
        elif not good:
            problems.append(f'{path}: the journal is empty, its records are redelivered')
    cursor = Cursor(log, name, log.first_seq, Journal(log.shared, path))
    try:
        end = cursor.restore(ops)
    except OverflowError:
        problems.append(f'{path}: the journal makes no sense, its records are redelivered')
        cursor = Cursor(log, name, log.first_seq, Journal(log.shared, path))
        unread += good
        good = 0
    if good and (not unread or save_unread_end(path, good, unread)):
        cursor.journal.adopt(good)
    elif unread and not good:
        os.rename(path, free_name(path + UNREADABLE_SUFFIX))
    log.add_cursor(cursor)
    return end
