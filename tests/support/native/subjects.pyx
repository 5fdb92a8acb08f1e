# cython: language_level=3
"""The index of a stream's subjects."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport sprintf

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.subjects cimport SubjectIndex


cdef class Subjects:
    cdef SubjectIndex index

    def __init__(self, SubjectIndex index not None):
        self.index = index

    def add(self, bytes subject, uint64_t seq):
        """The id of the subject."""
        return self.index.add(subject, <size_t>len(subject), seq)

    def add_many(self, bytes prefix, uint64_t seq, uint64_t count, uint64_t subjects,
                 uint64_t step=1):
        """Add `count` messages from seq on, with the subjects prefix0, prefix1 ... in turn.

        `step` is the distance between the numbers of subjects that follow each other.
        """
        cdef char name[256]
        cdef uint64_t i, number = 0
        cdef int n
        for i in range(count):
            n = sprintf(name, b'%s%llu', <const char *>prefix, <unsigned long long>number)
            self.index.add(name, <size_t>n, seq + i)
            number = (number + step) % subjects

    def find(self, bytes subject):
        return self.index.find(subject, <size_t>len(subject))

    def subject_of(self, uint64_t seq):
        """The subject of a live message, None = it is not live."""
        cdef uint32_t id = self.index.subject_of(seq)
        return self.name(id) if id else None

    def name(self, uint32_t number):
        cdef size_t n = 0
        cdef const char *name = self.index.name_of(number, &n)
        return name[:n]

    def kill(self, uint64_t seq):
        return bool(self.index.remove_message(seq))

    def kill_many(self, uint64_t first, uint64_t count, uint64_t step=1):
        """How many of these messages were live."""
        cdef uint64_t i, n = 0
        for i in range(count):
            n += self.index.remove_message(first + i * step)
        return n

    def kill_filter(self, Filter f):
        """Kill all messages that match; how many."""
        cdef uint64_t seq = self.index.next_match(f, 0), n = 0
        while seq:
            self.index.remove_message(seq)
            n += 1
            seq = self.index.next_match(f, seq + 1)
        return n

    def walk(self, Filter f, uint64_t seq):
        """How many messages match, found one after the other."""
        cdef uint64_t n = 0
        seq = self.index.next_match(f, seq)
        while seq:
            n += 1
            seq = self.index.next_match(f, seq + 1)
        return n

    def undo_from(self, uint64_t seq):
        self.index.undo_from(seq)

    def drop_below(self, uint64_t seq):
        return self.index.drop_below(seq)

    def clear(self):
        self.index.clear()

    def ends_of(self, bytes subject):
        """(first, last, count) of a live subject."""
        cdef uint32_t id = self.index.find(subject, <size_t>len(subject))
        return self.index.first_of(id), self.index.last_of(id), self.index.count_of(id)

    def next_of(self, uint64_t seq):
        return self.index.next_of(seq)

    def previous_of(self, uint64_t seq):
        return self.index.previous_of(seq)

    def last_of_until(self, bytes subject, uint64_t seq):
        cdef uint32_t id = self.index.find(subject, <size_t>len(subject))
        return self.index.last_of_until(id, seq)

    def next_match(self, Filter f, uint64_t seq):
        return self.index.next_match(f, seq)

    def previous_match(self, Filter f, uint64_t seq):
        return self.index.previous_match(f, seq)

    def last_match(self, Filter f):
        return self.index.last_match(f)

    def count_matching(self, Filter f, uint64_t seq):
        return self.index.count_matching(f, seq)

    def matches(self, Filter f, bytes subject):
        return bool(f.matches(self.index.find(subject, <size_t>len(subject))))

    def accepts(self, Filter f, bytes subject):
        return bool(f.accepts(subject, <size_t>len(subject)))

    @property
    def chunks(self):
        """Chunks of the column."""
        return self.index.chunks_end - self.index.chunks_first

    @property
    def ids(self):
        """Ids that were given out so far, used or free."""
        return self.index.ids_used - 1

    @property
    def groups(self):
        """Groups of filters."""
        return self.index.groups_used
