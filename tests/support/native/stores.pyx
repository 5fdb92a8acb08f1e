# cython: language_level=3
"""Messages of a stream, as protocols store and read them."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.engine.stream.store cimport Rollup, StreamOwner, StreamStore, message_t
from broker.runtime.types cimport record_t


cdef record_t record_of(bytes subject, bytes data, size_t headers_len):
    cdef record_t rec
    memset(&rec, 0, sizeof(rec))
    rec.subject = subject
    rec.subject_len = <uint16_t>len(subject)
    rec.data = data
    rec.headers_len = <uint32_t>headers_len
    rec.total_len = <uint32_t>len(data)
    return rec


def publish(StreamStore store not None, bytes subject not None, bytes body=b'', *,
            bytes headers=b'', int64_t ttl_ns=0, int rollup=0):
    """Append one message; its seq, or 0."""
    cdef bytes data = headers + body
    cdef record_t rec = record_of(subject, data, <size_t>len(headers))
    store.log.shared.turn.tick()
    return store.append(&rec, ttl_ns, <Rollup>rollup)


def publish_at(StreamStore store not None, uint64_t seq, bytes subject not None, bytes body=b'', *,
               int64_t timestamp_ns=1):
    """Append one message of another stream; its seq, or 0."""
    cdef record_t rec = record_of(subject, body, 0)
    return store.append_at(&rec, seq, timestamp_ns, 0, <Rollup>0)


def skip(StreamStore store not None):
    """Use a seq up; the seq, or 0."""
    return store.skip()


def outcome(StreamStore store not None):
    """Of the last append: 1 = it is safe, 0 = not yet, -1 = it failed."""
    return store.log.outcome(store.ticket)


def ticket(StreamStore store not None):
    """Of the last append, for `outcome` of broker.engine.log.publish."""
    return store.ticket


def refusal(StreamStore store not None):
    """Why the last append was refused: a Refusal."""
    return <int>store.refused


def kill(StreamStore store not None, uint64_t seq):
    """Delete a message that its consumers are done with; whether it was there."""
    return store.remove(seq)


def last_seq_of(StreamStore store not None, bytes subject not None):
    """The last message of a subject, 0 = none."""
    return store.last_seq_of(subject, <size_t>len(subject))


def duplicate_of(StreamStore store not None, bytes key not None):
    """The message with that id, 0 = none."""
    return store.duplicate_of(key, <size_t>len(key))


def remember_id(StreamStore store not None, bytes key not None, uint64_t seq):
    """That message has been stored with this id."""
    store.remember_id(key, <size_t>len(key), seq)


def forget_ids_from(StreamStore store not None, uint64_t seq):
    """The messages from this one on have not been stored after all."""
    store.duplicates.undo_from(seq)


cdef class Owner(StreamOwner):
    cdef list subjects

    cdef bint subject_expires(self, const message_t *m) noexcept:
        self.subjects.append(m.rec.subject[:m.rec.subject_len])
        return False


def watch_expiry(StreamStore store not None):
    """A list that gets each subject whose last message goes for its age."""
    cdef Owner owner = Owner()
    owner.subjects = []
    store.attach(owner)
    return owner.subjects


def fill(StreamStore store not None, uint64_t count, uint64_t subjects, size_t size):
    """Append so many messages of `size` bytes with subjects in turn; the last one's seq."""
    cdef list names = [b'fill.%d' % i for i in range(subjects)]
    cdef bytes body = bytes(size)
    cdef record_t rec = record_of(b'', body, 0)
    cdef uint64_t i, seq = 0
    for i in range(count):
        rec.subject = <bytes>names[i % subjects]
        rec.subject_len = <uint16_t>len(<bytes>names[i % subjects])
        seq = store.append(&rec, 0, <Rollup>0)
    return seq
