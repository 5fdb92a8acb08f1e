# cython: language_level=3
"""Finds stored messages by sequence, subject or time, for MSG.GET and direct get.

Messages that were appended in this turn and are not in the file yet are not found.
"""
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.protocols.jetstream.structs import StoredMsg, moment_ns, time_text
from broker.protocols.nats.accounts.subjects import raw

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.store cimport StreamStore, message_t
from broker.engine.stream.subjects cimport SubjectIndex
from broker.routing.trie cimport SUBJECT_WILDCARD, subject_shape


@cython.final
cdef class Lookup:
    def __init__(self, StreamStore store not None):
        """Searches this store."""
        self.store = store

    cdef Filter filter_of(self, object subject):
        """The filter of a subject; None for all messages."""
        return self.store.subjects.filter([raw(subject)]) if subject else None

    cdef uint64_t last(self, const char *subject, size_t n) except? 0:
        cdef SubjectIndex index = self.store.subjects
        cdef Filter filter
        cdef uint32_t id
        cdef uint64_t seq
        if subject_shape(subject, n) & SUBJECT_WILDCARD:
            filter = index.filter([subject[:n]])
            return index.previous_match(filter, self.store.readable - 1)
        id = index.find(subject, n)
        seq = index.last_of(id) if id else 0
        while seq >= self.store.readable:
            seq = index.previous_of(seq)
        return seq

    cdef uint64_t next(self, Filter filter, uint64_t seq) noexcept:
        cdef uint64_t found = self.store.subjects.next_match(filter, max(seq, <uint64_t>1))
        return found if found < self.store.readable else 0

    cdef uint64_t at_time(self, int64_t wall_ns) noexcept:
        cdef message_t m
        cdef uint64_t low = self.store.first_seq, high = self.store.readable, middle, found
        # Times increase with the seqs.
        while low < high:
            middle = low + (high - low) // 2
            found = self.next(None, middle)
            if found == 0 or found >= high:
                high = middle
            elif not self.store.read(found, &m):
                low = found + 1         # unreadable
            elif m.rec.timestamp_ns < wall_ns:
                low = found + 1
            else:
                high = middle
        return self.next(None, low)

    cdef uint64_t resolve(self, object request) except? 0:
        """The seq of the message that a structs.MsgGetRequest selects; 0 = none. ValueError: its
        time is invalid."""
        cdef uint64_t seq = request.seq
        cdef bytes subject
        if request.last_by_subj:
            subject = raw(request.last_by_subj)
            return self.last(subject, <size_t>len(subject))
        if request.start_time:
            seq = self.at_time(moment_ns(request.start_time))
            if seq == 0:
                return 0
        elif not request.next_by_subj:
            return seq if seq < self.store.readable else 0
        return self.next(self.filter_of(request.next_by_subj), seq)

    def is_stored(self, request):
        """Whether a structs.MsgGetRequest selects a message, even one that cannot be read."""
        return self.store.holds(self.resolve(request))

    def get(self, request):
        """The structs.StoredMsg for a structs.MsgGetRequest; None: there is no such message, or it
        cannot be read. ValueError: its time is invalid."""
        cdef message_t m
        cdef uint64_t seq = self.resolve(request)
        if seq == 0 or not self.store.read(seq, &m):
            return None
        headers = m.rec.data[:m.rec.headers_len]
        return StoredMsg(
            subject=m.rec.subject[:m.rec.subject_len].decode('utf-8', 'replace'),
            seq=seq,
            hdrs=b'' if request.no_hdr else headers,
            data=m.rec.data[m.rec.headers_len:m.rec.total_len],
            time=time_text(m.rec.timestamp_ns),
        )

    def page(self, object subject, uint64_t seq, bint newest_first=False, bint latest=False,
             int limit=0, uint64_t bytes_max=0):
        """Messages from a seq on: ([(seq, time in ns, subject, headers, body)], next seq).

        `subject`: a filter; empty = all. `newest_first`: in descending order. `latest`: only the
        newest message of each subject. `limit`: messages examined at most; `bytes_max`: reading
        ends after this number of bytes. The next page begins with the next seq; 0 = there is none.
        """
        cdef Filter filter = self.filter_of(subject)
        cdef SubjectIndex index = self.store.subjects
        cdef uint64_t read = 0
        cdef int examined = 0
        cdef message_t m
        cdef list found = []
        if newest_first:
            seq = min(seq, self.store.readable - 1)
        while examined < limit and (bytes_max == 0 or read < bytes_max):
            seq = index.previous_match(filter, seq) if newest_first else self.next(filter, seq)
            if seq == 0:
                break
            examined += 1
            if self.store.read(seq, &m):
                read += m.rec.total_len
                if not latest or self.last(m.rec.subject, m.rec.subject_len) == seq:
                    found.append((seq, m.rec.timestamp_ns, m.rec.subject[:m.rec.subject_len],
                                  m.rec.data[:m.rec.headers_len],
                                  m.rec.data[m.rec.headers_len:m.rec.total_len]))
            if newest_first:
                seq -= 1
                if seq == 0:
                    break
            else:
                seq += 1
        if seq != 0:
            seq = index.previous_match(filter, seq) if newest_first else self.next(filter, seq)
        return found, seq

    def seq_at(self, int64_t wall_ns):
        """The seq of the first message from this time on; 0 = there is none."""
        return self.at_time(wall_ns)
