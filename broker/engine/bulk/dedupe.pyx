# cython: language_level=3
"""The ids of recent messages of a log, so that a repeated message is not stored again.

Whatever it knows is in the log: it can be forgotten at any moment and read again.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.headers cimport find_header
from broker.engine.log.log cimport Log
from broker.engine.log.segment cimport Segment
from broker.engine.log.record cimport stored_t
from broker.engine.recent_ids cimport RecentIds
from broker.runtime.types cimport span_t
from broker.engine.bulk.ranges cimport View, view_of


cdef class Window(RecentIds):
    def __init__(self, bytes name, int64_t window_ns, uint32_t ids_max):
        """Remembers up to `ids_max` ids in the header `name` for this time."""
        self.name = name
        self.name_at = <const char *>self.name
        self.name_len = <size_t>len(name)
        self.window_ns = window_ns
        self.ids_max = ids_max

    def reset(self, Log log):
        """Forget everything, and use this log from now on. None: no log."""
        self.log_id = None if log is None else log.log_id
        self.next_seq = 0
        self.forget_all()

    cdef bint identify(self, const record_t *rec, recent_id_t *id) noexcept nogil:
        cdef span_t value
        if rec.headers_len == 0:
            return False
        value = find_header(rec.data, rec.headers_len, self.name_at, self.name_len)
        while value.len and value.ptr[value.len - 1] == c' ':
            value.len -= 1
        if value.len == 0:
            return False
        id.seq = 0
        self.hash_id(id, value.ptr, value.len)
        return True

    cdef void passed(self, uint64_t first_seq, uint64_t last_seq, uint64_t count) noexcept:
        if first_seq == self.next_seq and last_seq - first_seq + 1 == count:
            self.next_seq = last_seq + 1

    def unread_views(self, Log log, size_t bytes_max):
        """The records that `read` must read to know all ids of the log; None: it knows them.

        If there are very many, only about the last `bytes_max`.
        """
        cdef Segment segment
        cdef View view
        cdef size_t left = bytes_max, at
        cdef list views = []
        if self.log_id != log.log_id:
            self.reset(log)
        self.forget_until(log.shared.turn.wall_ns - self.window_ns)
        if self.next_seq >= log.visible:
            return None
        for segment in reversed(log.segments):
            if segment.next_seq <= self.next_seq or left == 0 or (
                    segment.changed_ns + self.window_ns < log.shared.turn.wall_ns
                    and not segment.active):
                break
            view = view_of(segment)
            view.next = max(view.next, segment.hint(self.next_seq, NULL))
            if view.size - view.next > left:
                at = latest_within(segment, left)
                view.next = max(view.next, at)
            left -= min(left, view.size - view.next)
            views.append(view)
        views.reverse()
        return views, self.next_seq, log.visible, log.shared.turn.wall_ns - self.window_ns

    def read(self, plan):
        """Read the ids of these records; on any thread, while no other thread uses the window."""
        cdef View view
        cdef stored_t s
        cdef recent_id_t id
        views, first, end, since_ns = plan
        for view in views:
            try:
                view.open()
            except FileNotFoundError:
                continue        # dropped meanwhile
            while view.find(first, since_ns, &s):
                view.next += s.size
                if self.identify(&s.rec, &id) and self.known(&id) == NULL:
                    id.time_ns = s.rec.timestamp_ns
                    self.remember(&id)
        self.next_seq = end


cdef size_t latest_within(Segment segment, size_t left) noexcept:
    """The offset of the records in the last `left` bytes, as far as the index shows it."""
    cdef size_t low = 0, high = segment.index_size, middle
    while low < high:
        middle = (low + high) // 2
        if segment.index_offset(middle) + left < segment.size:
            low = middle + 1
        else:
            high = middle
    return segment.index_offset(low) if low < segment.index_size else segment.start()
