# cython: language_level=3
"""Scanning of a server's bytes for the load generator, and its prebuilt bytes to send."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    OP_MORE = 0       # an incomplete line or frame
    OP_MSG = 1
    OP_PING = 2       # NATS PING, NSQ _heartbeat_
    OP_PONG = 3
    OP_OK = 4         # NATS +OK, NSQ OK
    OP_CLOSE = 5      # NSQ CLOSE_WAIT
    OP_OTHER = 6      # INFO, and other NSQ responses, which loads ignore or refuse
    OP_ERR = 7        # -ERR, NSQ error frame: text in op_t
    OP_BAD = 8        # not a line or frame of the protocol

cdef enum:
    HEAD_MAX = 64         # longest NATS header line that is remembered, bytes
    LINE_MAX = 65536      # longest line of a NATS server (an INFO with many URLs), bytes
    FRAME_MAX = 67108864  # longest accepted NSQ frame, bytes
    FIN_BYTES = 21        # "FIN " + id + LF
    ID_BYTES = 16
    NSQ_HEAD_BYTES = 34   # size, type, timestamp, attempts, id

# One line or frame. The pointers point into the scanned bytes.
ctypedef struct op_t:
    const char *text      # NATS: the line; NSQ: the message id, or the text of an error
    const char *body      # first body byte
    uint64_t frame_bytes  # whole length: header, body, line ends
    uint32_t text_len     # bytes, without the line end
    uint32_t body_len     # bytes
    uint16_t attempts     # NSQ messages only

# The counts of one NATS connection.
ctypedef struct nats_count_t:
    uint64_t msgs         # complete messages received
    uint64_t body_bytes
    uint64_t skip         # bytes of an incomplete message still to receive
    uint32_t skip_body    # its body length
    uint32_t pings        # PINGs not answered yet
    uint32_t pongs
    uint32_t head_len     # bytes of `head`; 0 = none
    uint32_t head_body    # body length in that line
    char head[HEAD_MAX]   # the last header line

# Bytes that are owned elsewhere.
ctypedef struct text_t:
    const char *ptr
    size_t len

cdef int nats_next(const char *p, size_t n, op_t *op) noexcept nogil
cdef int nats_reply(const op_t *op, const char **reply, uint32_t *reply_len) noexcept nogil
cdef int nats_count(nats_count_t *s, const char *p, size_t n, size_t *used,
                    op_t *op) noexcept nogil
cdef int nsq_next(const char *p, size_t n, op_t *op) noexcept nogil


cdef class Block:
    """Concatenated units (commands), sent as an endless stream of whole periods."""
    cdef bytes data
    cdef const char *ptr          # data's bytes
    cdef uint64_t size            # bytes of data: whole periods
    cdef uint64_t period_bytes
    cdef uint64_t period_units
    cdef uint64_t *starts         # period_units + 1 offsets; owned
    cdef uint64_t first_unit(self, int part, int parts) noexcept nogil
    cdef uint64_t bytes_for(self, uint64_t units) noexcept nogil
    cdef uint64_t units_started(self, uint64_t nbytes) noexcept nogil


cdef class Texts:
    """Byte strings that a load reads by index, without the GIL."""
    cdef list texts               # owns the bytes
    cdef text_t *each             # address and length of each; owned
    cdef uint64_t count
