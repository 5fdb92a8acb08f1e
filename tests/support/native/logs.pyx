# cython: language_level=3
"""The parts of a log: records of a segment in memory, deferred records, known message ids."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from broker.engine.bulk.dedupe cimport Window
from broker.engine.log.delays cimport Delays
from broker.engine.log.record cimport record_get, salt_of, stored_t
from broker.engine.log.segment cimport Segment
from broker.engine.recent_ids cimport recent_id_t
from broker.runtime.types cimport record_t

cdef extern from "crc32c.h" nogil:
    int tw_crc_mode
    void tw_crc_init()
    uint32_t tw_crc32c(uint32_t crc, const void *data, size_t n)

tw_crc_init()
_BEST = tw_crc_mode


def crc_modes():
    """The ways in which this processor can take a sum: see tw_crc_mode."""
    return range(1, _BEST + 1)


def crc_by(int mode, bytes data, uint32_t crc=0):
    """A sum taken in that way."""
    global tw_crc_mode
    tw_crc_mode = mode
    return tw_crc32c(crc, <const char *>data, <size_t>len(data))


cdef class DelayTable:
    cdef Delays delays

    def __init__(self, Delays delays not None):
        self.delays = delays

    def __len__(self):
        return self.delays.size

    def add(self, uint64_t seq, int64_t due_ns, int64_t now_ns):
        self.delays.add(seq, due_ns, now_ns)

    def count(self, uint64_t first, uint64_t end, int64_t now_ns):
        return self.delays.count(first, end, now_ns)


def remember(Window window not None, bytes headers not None, int64_t time_ns):
    """Whether the id in these headers was known; it is afterwards. None: there is no id."""
    cdef record_t rec
    cdef recent_id_t id
    rec.data = headers
    rec.headers_len = <uint32_t>len(headers)
    window.forget_until(time_ns - window.window_ns)
    if not window.identify(&rec, &id):
        return None
    id.time_ns = time_ns
    if window.known(&id) != NULL:
        return True
    window.remember(&id)
    return False


cdef Segment in_memory(bytes data, bytes log_id, uint64_t first_seq):
    """A segment whose records are `data`, in memory of exactly that size."""
    cdef Segment segment = Segment()
    segment.first_seq = segment.next_seq = first_seq
    segment.salt = salt_of(log_id)
    segment.cap = segment.size = segment.planned = <size_t>len(data)
    memcpy(<char *>segment.map(), <const char *>data, segment.size)
    return segment


def scan_records(bytes data not None, bytes log_id not None, uint64_t first_seq=1):
    """What a scan finds after a file header: (records, cut bytes, quarantined bytes).

    A record is (seq, subject, reply, headers, body).
    """
    cdef Segment segment = in_memory(data, log_id, first_seq)
    cdef stored_t s
    cdef size_t at = 0, step
    cut, bad = segment.scan()
    found = []
    while at < segment.size:
        at = segment.skip_quarantined(at)
        step = record_get(segment.base + at, segment.size - at, segment.salt, check=False, out=&s)
        if step == 0:
            break       # the end cannot be read
        found.append((
            s.rec.seq, s.rec.subject[:s.rec.subject_len], s.rec.reply[:s.rec.reply_len],
            s.rec.data[:s.rec.headers_len], s.rec.data[s.rec.headers_len:s.rec.total_len]))
        at += step
    return found, cut, bad


def locate_record(bytes data not None, bytes log_id not None, uint64_t seq, uint64_t first_seq=1):
    """Seq of the first record at or after `seq`, as a reader finds it without a scan before."""
    cdef Segment segment = in_memory(data, log_id, first_seq)
    cdef stored_t s
    cdef size_t at = segment.locate(seq)
    if at >= segment.size or not record_get(
            segment.base + at, segment.size - at, segment.salt, check=True, out=&s):
        return None
    return s.rec.seq
