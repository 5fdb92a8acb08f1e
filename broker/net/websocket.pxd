# cython: language_level=3
"""WebSocket frames between a transport and a session."""
from libc.stdint cimport uint8_t, uint64_t

from broker.net.filters cimport Filter


cdef class WebSocket(Filter):
    cdef bytes rest             # input; bytes up to `taken` are processed
    cdef size_t taken
    cdef uint64_t left          # payload bytes of the current frame still to receive
    cdef uint8_t mask[4]
    cdef uint64_t mask_at       # payload bytes of the current frame unmasked so far
    cdef bint masked            # the peer's frames are masked
    cdef bint masks             # this side's frames are masked
    cdef bint in_frame          # its header has been read
    cdef bint in_message        # part of a message of several frames has been received
    cdef bint last              # the current frame ends its message
    cdef bint compressed        # the current message is compressed
    cdef bint compression       # compression was negotiated
    cdef size_t frame_max       # largest frame to send, in bytes; 0 = any
    cdef int frames_max         # empty frames processed per call
    cdef object unpacker        # of the current message, or None
    cdef bytes packed           # input that the decompressor has not processed
    cdef bint more              # the decompressor may have more output
    cdef bint tailed            # the tail that senders omit has been added to the message
    cdef list waiting           # output to send as one compressed message
    cdef bytes pong             # pending answer to the last PING, or None
    cdef bytes close_frame      # pending CLOSE frame, or None
    cdef bint close_sent
    cdef public object status   # returns (code, reason) of the CLOSE frame to send

    cdef Py_ssize_t header(self) except -1
    cdef int begin(self, int opcode, bint fin, bint rsv1, uint64_t length) except -1
    cdef int control(self, int opcode, bytes payload) except -1
    cdef Py_ssize_t take_plain(self, char *room, size_t n) except -1
    cdef Py_ssize_t take_packed(self, char *room, size_t n) except -1
    cdef size_t unmask(self, char *room, size_t n) noexcept
    cdef bytes frame(self, int first, bytes payload)
    cdef bytes framed(self, int first, bytes payload)
    cdef int bad(self, str reason) except -1
