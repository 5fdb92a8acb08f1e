# cython: language_level=3
"""The V2 grammar: decodes commands, encodes frames. No client state, no clock."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from broker.runtime.types cimport record_t

cdef enum Kind:
    OP_NONE
    OP_PUB
    OP_MPUB
    OP_DPUB
    OP_FIN
    OP_REQ
    OP_TOUCH
    OP_RDY
    OP_NOP
    OP_CLS
    OP_SUB
    OP_IDENTIFY
    OP_AUTH
    OP_UNKNOWN

# Why a command is invalid. The session answers this only if its state allows the command.
cdef enum Wrong:
    WRONG_NOTHING
    WRONG_LINE          # longer than the limit: close without an error
    WRONG_STATE         # IDENTIFY or AUTH too late: found before the body arrives
    WRONG_PARAMS        # too few parameters; AUTH: any parameter
    WRONG_TOPIC
    WRONG_CHANNEL
    WRONG_ID            # not 16 bytes
    WRONG_NUMBER        # not digits: `text`
    WRONG_RANGE         # `number` is out of range
    WRONG_SIZE          # body size `number`
    WRONG_BIG           # body size `number`
    WRONG_COUNT         # MPUB: `number` messages
    WRONG_PART_SIZE     # MPUB: message `index` has size `number`
    WRONG_PART_BIG      # MPUB: the same
    WRONG_TOTAL         # MPUB: the messages have `number` bytes in total

# What the unfinished command at the end is waiting for.
cdef enum Stage:
    STAGE_LINE
    STAGE_SIZE
    STAGE_BODY
    STAGE_COUNT         # MPUB: the number of messages
    STAGE_PART_SIZE     # MPUB: the size of message `parts`
    STAGE_PART          # MPUB: that message

cdef enum:
    LINE_MAX = 16384        # nsqd's read buffer, which limits its lines
    ID_BYTES = 16
    FIN_BYTES = 21          # FIN, a space, id, LF
    COUNT_BYTES = 4
    PART_BYTES_MIN = 5      # of one message in an MPUB: its size and one byte
    MEMO_BYTES = 72         # PUB, a space, a name, LF
    FRAME_BYTES = 8         # size and type
    MESSAGE_HEAD_BYTES = 34  # frame head, timestamp, attempts, id
    FRAME_RESPONSE = 0
    FRAME_ERROR = 1
    FRAME_MESSAGE = 2

# One command with its body. Pointers refer to the scanned bytes.
cdef struct op_t:
    const char *name    # topic (SUB PUB MPUB DPUB), id (FIN REQ TOUCH), unknown: the command
    const char *text    # body; MPUB: the first size; SUB: channel; WRONG_NUMBER: its text
    size_t end          # offset after the command in the scanned bytes
    uint64_t number     # FIN REQ TOUCH: seq, 0 = invalid id; RDY: count; invalid sizes, signed
    uint64_t delay      # REQ, DPUB: milliseconds as written, modulo 2**64
    uint32_t name_len
    uint32_t text_len
    uint32_t index      # MPUB: number of messages, or index of the invalid one
    uint8_t kind
    uint8_t wrong

# The scanner's state of one connection. Initially all zeros except the limits.
cdef struct scan_t:
    int64_t message_max     # bytes
    int64_t body_max        # bytes
    int64_t delay_max_ns    # of DPUB
    int64_t ready_max       # of RDY
    bint unsubscribed       # before SUB: IDENTIFY and AUTH are legal; set by the session
    uint8_t stage           # of the unfinished command
    uint8_t kind            # of the unfinished command, OP_NONE in STAGE_LINE
    uint32_t parts          # messages of an unfinished MPUB seen so far
    size_t parts_end        # offset after them from the command's first byte, 0 = none
    size_t need             # total bytes of the unfinished command, 0 = unknown
    const char *topic       # of an unfinished MPUB; valid as long as the scanned bytes
    uint32_t topic_len
    uint32_t memo_len       # 0 = none
    uint32_t memo_name_len  # of the topic in it
    char memo[MEMO_BYTES]   # last good PUB line, LF included

# Fills up to cap ops and returns the bytes they take; stops after an invalid one and after one
# that may change the state. The rest is one unfinished command, or not scanned yet.
cdef size_t scan(scan_t *s, const char *data, size_t n, op_t *ops, int cap,
                 int *found) noexcept nogil

cdef extern from "core.h" nogil:
    uint32_t tw_load_be32(const void *p)
    void tw_store_be16(void *p, uint32_t v)
    void tw_store_be32(void *p, uint32_t v)
    void tw_store_be64(void *p, uint64_t v)

cdef extern from "msgid.h" nogil:
    void nsq_put_id(char *p, uint64_t seq)
    uint64_t nsq_get_id(const char *p)


cdef inline void put_frame_head(char *p, uint32_t payload, uint32_t frame_type) noexcept nogil:
    """Write size and type, FRAME_BYTES, to p."""
    tw_store_be32(p, payload + 4)
    tw_store_be32(p + 4, frame_type)


cdef inline void put_message(char *p, const record_t *rec) noexcept nogil:
    """Write a message frame to p: MESSAGE_HEAD_BYTES, then the record's body without headers."""
    cdef uint32_t body = rec.total_len - rec.headers_len
    put_frame_head(p, body + MESSAGE_HEAD_BYTES - FRAME_BYTES, FRAME_MESSAGE)
    tw_store_be64(p + 8, <uint64_t>rec.timestamp_ns)
    tw_store_be16(p + 16, rec.attempts)
    nsq_put_id(p + 18, rec.seq)
    memcpy(p + MESSAGE_HEAD_BYTES, rec.data + rec.headers_len, body)
