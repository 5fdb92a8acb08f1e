# cython: language_level=3
"""Error texts for wrong commands: from the scanner's codes to what nsqd says, letter by letter."""
from libc.stdint cimport int64_t, uint32_t

from broker.protocols.nsq.wire cimport (
    OP_AUTH,
    OP_DPUB,
    OP_MPUB,
    OP_PUB,
    OP_RDY,
    OP_SUB,
    OP_UNKNOWN,
    STAGE_BODY,
    STAGE_COUNT,
    STAGE_LINE,
    STAGE_PART_SIZE,
    STAGE_SIZE,
    WRONG_BIG,
    WRONG_CHANNEL,
    WRONG_COUNT,
    WRONG_ID,
    WRONG_NUMBER,
    WRONG_PARAMS,
    WRONG_PART_BIG,
    WRONG_PART_SIZE,
    WRONG_RANGE,
    WRONG_SIZE,
    WRONG_STATE,
    WRONG_TOPIC,
    WRONG_TOTAL,
    op_t,
    scan_t,
)

from broker.protocols.nsq import errors
from broker.base.gotext import go_quote
from broker.protocols.nsq.errors import nsq_text

cdef enum:
    MS = 1000000        # nanoseconds

# By Kind.
cdef tuple COMMANDS = (
    '', 'PUB', 'MPUB', 'DPUB', 'FIN', 'REQ', 'TOUCH', 'RDY', 'NOP', 'CLS', 'SUB', 'IDENTIFY',
    'AUTH', '')


cdef str command_of(int kind):
    return COMMANDS[kind]


cdef str raw_text(const char *text, uint32_t n):
    """Bytes that go out again as they came."""
    return text[:n].decode('utf-8', 'surrogateescape')


cdef bytes refusal(const op_t *op, const scan_t *limits):
    cdef int wrong = op.wrong
    cdef str command = COMMANDS[op.kind]
    if op.kind == OP_UNKNOWN:
        return nsq_text(errors.NSQ_COMMAND, command=raw_text(op.name, op.name_len))
    if wrong == WRONG_STATE:
        return nsq_text(errors.NSQ_STATE, command=command)
    if wrong == WRONG_PARAMS:
        if op.kind == OP_AUTH:
            return nsq_text(errors.NSQ_AUTH_PARAMETERS)
        if op.kind in (OP_SUB, OP_PUB, OP_MPUB, OP_DPUB):
            return nsq_text(errors.NSQ_PARAMETERS, command=command)
        return nsq_text(errors.NSQ_PARAMS, command=command)
    if wrong == WRONG_TOPIC:
        error = errors.NSQ_MPUB_TOPIC if op.kind == OP_MPUB else errors.NSQ_TOPIC
        return nsq_text(error, command=command, name=go_quote(op.name[:op.name_len]))
    if wrong == WRONG_CHANNEL:
        return nsq_text(errors.NSQ_CHANNEL, name=go_quote(op.text[:op.text_len]))
    if wrong == WRONG_ID:
        return nsq_text(errors.NSQ_MESSAGE_ID)
    if wrong == WRONG_NUMBER:
        error = errors.NSQ_COUNT if op.kind == OP_RDY else errors.NSQ_TIMEOUT
        return nsq_text(error, command=command, text=raw_text(op.text, op.text_len))
    if wrong == WRONG_RANGE:
        if op.kind == OP_RDY:
            return nsq_text(
                errors.NSQ_COUNT_RANGE, number=<int64_t>op.number, most=limits.ready_max)
        return nsq_text(
            errors.NSQ_TIMEOUT_RANGE, number=op.number, most=limits.delay_max_ns // MS)
    return size_refusal(op, limits, command)


cdef bytes size_refusal(const op_t *op, const scan_t *limits, str command):
    cdef int wrong = op.wrong
    cdef int64_t number = <int64_t>op.number
    cdef bint is_message = op.kind == OP_PUB or op.kind == OP_DPUB
    if wrong == WRONG_SIZE:
        error = errors.NSQ_MESSAGE_SIZE if is_message else errors.NSQ_BODY_SIZE
        return nsq_text(error, command=command, number=number)
    if wrong == WRONG_PART_BIG or (wrong == WRONG_BIG and is_message):
        return nsq_text(
            errors.NSQ_MESSAGE_BIG, command=command, number=number, most=limits.message_max)
    if wrong == WRONG_COUNT:
        return nsq_text(errors.NSQ_MPUB_COUNT, number=number)
    if wrong == WRONG_PART_SIZE:
        return nsq_text(errors.NSQ_MPUB_SIZE, index=op.index, number=number)
    if wrong != WRONG_BIG and wrong != WRONG_TOTAL:
        raise AssertionError(f'no text for a command wrong in {wrong}')
    return nsq_text(errors.NSQ_BODY_BIG, command=command, number=number, most=limits.body_max)


cdef bytes unread(const scan_t *state):
    cdef str command = COMMANDS[state.kind]
    cdef bint is_message = state.kind == OP_PUB or state.kind == OP_DPUB
    if state.stage == STAGE_LINE:
        return None
    if state.stage == STAGE_SIZE:
        error = errors.NSQ_MESSAGE_SIZE_UNREAD if is_message else errors.NSQ_BODY_SIZE_UNREAD
    elif state.stage == STAGE_BODY:
        error = errors.NSQ_MESSAGE_UNREAD if is_message else errors.NSQ_BODY_UNREAD
    elif state.stage == STAGE_COUNT:
        error = errors.NSQ_MPUB_COUNT_UNREAD
    elif state.stage == STAGE_PART_SIZE:
        return nsq_text(errors.NSQ_MPUB_SIZE_UNREAD, index=state.parts)
    else:
        error = errors.NSQ_MESSAGE_UNREAD
    return nsq_text(error, command=command)
