# cython: language_level=3
"""WebSocket frames between a transport and a session."""
from libc.stdint cimport uint8_t, uint64_t

from broker.net.filters cimport Filter


cdef class WebSocket(Filter):
    cdef bytes rest             # received, used up to `taken`
    cdef size_t taken
    cdef uint64_t left          # payload bytes of the frame at hand that are still to come
    cdef uint8_t mask[4]
    cdef uint64_t mask_at       # payload bytes of the frame unmasked so far
    cdef bint masked            # frames of the peer are
    cdef bint masks             # ours are
    cdef bint in_frame          # its header has been read
    cdef bint in_message        # a frame that is not the last one of its message has come
    cdef bint last              # the frame at hand ends its message
    cdef bint compressed        # the message at hand is
    cdef bint compression       # was agreed on
    cdef size_t frame_max       # bytes of our frames; 0 = any
    cdef int frames_max         # that are looked at without finding anything in them
    cdef object unpacker        # of the message at hand, or None
    cdef bytes packed           # input that the unpacker has not taken
    cdef bint more              # the unpacker may hold more than was read
    cdef bint tailed            # the tail that senders leave out was put behind the message
    cdef list waiting           # to be sent as one compressed message
    cdef bytes pong             # an answer that is not sent yet, or None: the last PING counts
    cdef bytes farewell         # a CLOSE frame that is not sent yet, or None
    cdef bint said_farewell
    cdef public object status   # () -> (code, reason) of our CLOSE frame

    cdef Py_ssize_t header(self) except -1
    cdef int begin(self, int opcode, bint fin, bint rsv1, uint64_t length) except -1
    cdef int control(self, int opcode, bytes payload) except -1
    cdef Py_ssize_t take_plain(self, char *room, size_t n) except -1
    cdef Py_ssize_t take_packed(self, char *room, size_t n) except -1
    cdef size_t unmask(self, char *room, size_t n) noexcept
    cdef bytes frame(self, int first, bytes payload)
    cdef bytes framed(self, int first, bytes payload)
    cdef int bad(self, str reason) except -1
