# cython: language_level=3
"""Copies the messages of one stream into another one. See copier.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.stream.filter cimport Filter
from broker.engine.stream.interfaces cimport StreamReader
from broker.engine.stream.store cimport message_t
from broker.protocols.jetstream.publish.stream cimport Stream
from broker.runtime.interfaces cimport Session
from broker.runtime.types cimport record_t


cdef class OriginReader(StreamReader):
    cdef Copier copier


cdef class TargetReader(StreamReader):
    cdef Copier copier


cdef class Copier(Session):
    cdef readonly object source         # structs.StreamSource
    cdef readonly str key               # distinguishes the sources of a stream: see source_key
    cdef readonly bint mirrors          # copies keep their sequences and times
    cdef readonly Stream target
    cdef readonly Stream origin         # None: it does not exist at present
    # Seqs of the origin: messages up to `examined_to` were copied or left out; the copies of those
    # up to `stored_to` are stored.
    cdef readonly uint64_t examined_to
    cdef readonly uint64_t stored_to
    cdef readonly object error          # the ApiError that stops it, or None
    cdef readonly bint connected        # it has read from an origin
    cdef public str account             # the account here that has the origin; None = the target's
    # For an origin that is read through a consumer, whose messages arrive in `receive`:
    cdef public bint remote
    cdef uint64_t remaining             # messages of the origin after the last received one
    cdef uint64_t ticket_last_seq       # the target's last_seq at the time of `ticket`
    # Requests for flow control, answered when all messages before them are stored: (reply subject,
    # number of deliveries before the request, sequence of the last one).
    cdef list answers
    cdef bint lost                      # received messages are not stored: `restart` is needed
    # Called without arguments; None: nothing is called.
    cdef public object on_settled       # no message waits for the target's log any more
    cdef public object on_failed        # received messages could not be stored
    cdef public object on_progress      # `stored_to` has increased

    cdef OriginReader origin_reader
    cdef TargetReader target_reader
    cdef Filter filter                  # of the origin's messages; None = all
    cdef list transforms                # (source, Transform or None) of subjects
    cdef bytes head, tail               # the text of Nats-Stream-Source around the sequence
    cdef char *subject_buffer           # owned; for a transformed subject
    cdef char *buffer                   # owned; for a message with other headers
    cdef size_t buffer_size
    cdef uint64_t batch_start           # last_seq of the target before the messages of `ticket`
    cdef uint64_t ticket_position       # `examined_to` at the time of `ticket`
    cdef uint64_t ticket                # of messages that wait for the target's log; 0 = none do
    cdef bint log_settled               # the log has reported the outcome
    cdef int64_t last_contact_ns        # monotonic: of the last contact with an origin
    cdef bint closed

    cdef void wake(self) noexcept
    cdef int settle(self) except -1
    cdef void target_failed(self) noexcept
    cdef int return_to_stored(self) except -1
    cdef int copy_batch(self) except -1
    cdef int reuse_gap(self) except -1
    cdef bint receive(self, const message_t *m, uint64_t left) except -1
    cdef int await_log(self) except -1
    cdef void record_contact(self) noexcept
    cdef void origin_idle(self) noexcept
    cdef int answer_when_stored(self, bytes reply, uint64_t delivered) except -1
    cdef int answer(self) except -1
    cdef int copy(self, const message_t *m) except -1
    cdef int transform(self, record_t *rec) except -1
    cdef int rewrite(self, record_t *rec, uint64_t seq, const char *subject,
                     size_t subject_len) except -1
    cdef void retry(self, int64_t wait_ns) noexcept
