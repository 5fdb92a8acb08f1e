# cython: language_level=3
"""Copies the messages of one stream into another one. See copier.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.interfaces cimport StreamReaders
from broker.engine.stream.store cimport message_t
from broker.protocols.jetstream.publish.stream cimport Stream
from broker.runtime.interfaces cimport Session
from broker.runtime.types cimport record_t


cdef class OriginReader(StreamReaders):
    cdef Copier copier


cdef class TargetReader(StreamReaders):
    cdef Copier copier


cdef class Copier(Session):
    cdef readonly object source         # structs.StreamSource
    cdef readonly str key  # identifies the source among those of the stream: see source_key
    cdef readonly bint mirrors          # keeps sequences and times
    cdef readonly Stream target
    cdef readonly Stream origin         # None: there is none at present
    cdef readonly uint64_t at           # messages of the origin up to this sequence were examined
    cdef readonly uint64_t kept         # ... and the copies of those up to this one are stored
    cdef readonly object error          # the ApiError that stops it, or None
    cdef readonly bint connected        # it has read from an origin
    cdef public str account             # this server's account with the origin; None = the target's
    # For an origin that a consumer reads, whose messages arrive by `take`:
    cdef public bint remote
    cdef uint64_t left                  # messages of the origin after the last one received
    cdef uint64_t later                 # the target's last_seq at the time of `ticket`
    # Reply subjects to answer when everything is stored, each with the number of deliveries before
    # it and the sequence of the last one.
    cdef list answers
    cdef bint lost                      # received messages are not stored: `begin_again` comes next
    cdef public object rested           # called when nothing waits for the target's log any more
    cdef public object failed  # called when received messages could not be stored
    cdef public object progressed       # called when `kept` has increased; or None

    cdef OriginReader reader
    cdef TargetReader room_reader
    cdef Filter filter                  # of the origin's messages; None = all
    cdef list transforms                # (source, Transform or None) of subjects
    cdef bytes head, tail               # of Nats-Stream-Source, before and after the sequence
    cdef char *subject_room             # owned; for a transformed subject
    cdef char *room                     # owned; for a message with other headers
    cdef size_t room_size
    cdef uint64_t batch  # the target's last_seq before the messages that wait for its log
    cdef uint64_t mark                  # `at` at the time of `ticket`
    cdef uint64_t ticket                # of messages that wait for the target's log; 0 = none do
    cdef bint answered                  # the log has reported the outcome
    cdef int64_t seen_ns                # of the last contact, monotonic
    cdef bint closed

    cdef void wake(self) noexcept
    cdef int settle(self) except -1
    cdef void taken_back(self) noexcept
    cdef int undo(self) except -1
    cdef int copy_some(self) except -1
    cdef int reuse_gap(self) except -1
    cdef bint take(self, const message_t *m, uint64_t left) except -1
    cdef int await_log(self) except -1
    cdef void seen(self) noexcept
    cdef void nothing_left(self) noexcept
    cdef int answer_when_stored(self, bytes reply, uint64_t delivered) except -1
    cdef int answer(self) except -1
    cdef int copy(self, const message_t *m) except -1
    cdef int transform(self, record_t *rec) except -1
    cdef int rewrite(self, record_t *rec, uint64_t seq, const char *subject,
                     size_t subject_len) except -1
    cdef void retry(self, int64_t wait_ns) noexcept
