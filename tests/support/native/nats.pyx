# cython: language_level=3
"""The scanners of NATS clients and of leaf node links, and what is written to them."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.protocols.nats.client.rate_limit cimport Bucket
from broker.protocols.nats.leafnodes.wire cimport (
    is_sendable, leaf_head_bytes, next_group, put_leaf_head, scan_leaf)
from broker.protocols.nats.wire.wire cimport (
    OP_ERROR, OP_PUB, OP_SUB, OP_UNSUB, OPS_MAX, SCAN_CONTROL_LINE, SCAN_PAYLOAD, SCAN_SILENT,
    SCAN_UNKNOWN, op_t, scan, scan_t, token_t)
from broker.runtime.types cimport record_t

from broker.protocols.nats.wire.wire import NAMES

ERRORS = {'silent': SCAN_SILENT, 'unknown': SCAN_UNKNOWN, 'control line': SCAN_CONTROL_LINE,
          'payload': SCAN_PAYLOAD}


def scan_client(data, *, uint32_t control_line_max=4096, uint32_t payload_max=1 << 20,
                uint32_t run_max=512, bint headers=False, uint8_t skipping=0, uint8_t pending=0):
    """Scan once, runs as single messages: (operations, used, need, skipping, pending)."""
    return scan_once(bytes(data), scan_state(
        control_line_max, payload_max, run_max, headers, skipping, pending), False)


def scan_link(data, *, uint32_t control_line_max=0xFFFF, uint32_t payload_max=1 << 20,
              uint32_t run_max=512, uint8_t skipping=0, uint8_t pending=0):
    """As scan_client, for a link."""
    return scan_once(bytes(data), scan_state(
        control_line_max, payload_max, run_max, False, skipping, pending), True)


cdef scan_t scan_state(uint32_t control_line_max, uint32_t payload_max, uint32_t run_max,
                       bint headers, uint8_t skipping, uint8_t pending):
    cdef scan_t st
    memset(&st, 0, sizeof(st))
    st.control_line_max = control_line_max
    st.payload_max = payload_max
    st.run_max = run_max
    st.headers = headers
    st.skipping = skipping
    st.pending = pending
    return st


cdef scan_once(bytes data, scan_t st, bint is_link):
    cdef op_t ops[OPS_MAX]
    cdef uint32_t count, i
    cdef size_t used
    if is_link:
        used = scan_leaf(<const char *>data, <size_t>len(data), ops, &count, &st)
    else:
        used = scan(<const char *>data, <size_t>len(data), ops, &count, &st)
    found = []
    for i in range(count):
        if ops[i].kind == OP_PUB:
            found += link_messages(&ops[i]) if is_link else client_messages(&ops[i])
        else:
            found.append(operation(&ops[i], is_link))
    return found, used, st.need, st.skipping, st.pending


cdef tuple operation(const op_t *op, bint is_link):
    """An operation that is no message."""
    second = op.reply[:op.reply_len] if op.code else None
    if op.kind == OP_ERROR:
        return 'ERROR', op.code
    if op.kind == OP_SUB and is_link:
        return 'LS+', op.subject[:op.subject_len], second, op.count
    if op.kind == OP_SUB:
        return 'SUB', op.subject[:op.subject_len], second, op.text[:op.text_len]
    if op.kind == OP_UNSUB and is_link:
        return 'LS-', op.subject[:op.subject_len], second
    if op.kind == OP_UNSUB:
        return 'UNSUB', op.text[:op.text_len], op.count
    if op.total_len:
        return NAMES[op.kind], op.data[:op.total_len]
    return (NAMES[op.kind],)


cdef list client_messages(const op_t *op):
    return [('PUB', op.subject[:op.subject_len], op.reply[:op.reply_len], op.text[:op.text_len],
             op.headers_len, body_of(op, k)) for k in range(op.count)]


cdef list link_messages(const op_t *op):
    return [('MSG', op.subject[:op.subject_len], op.reply[:op.reply_len], groups_of(op),
             op.headers_len, body_of(op, k), op.text[:op.text_len]) for k in range(op.count)]


cdef bytes body_of(const op_t *op, size_t k):
    """The payload of message k of a run."""
    return (op.data + k * op.stride)[:op.total_len]


cdef groups_of(const op_t *op):
    """The queue groups of a message, None when there is no list."""
    cdef const char *p = op.groups
    cdef token_t name
    if p == NULL:
        return None
    names = []
    while next_group(&p, op.text, &name):
        names.append(name.ptr[:name.len])
    return names


def message_head(bytes subject not None, bytes reply not None, list groups not None,
                 uint32_t headers_len, uint32_t total_len, bytes size_text=None,
                 bint headers=True):
    """The control line that a link sends; None when the subject cannot be sent."""
    cdef record_t rec
    cdef char *end
    cdef bytearray line
    cdef bytes names = b''.join(name + b' ' for name in groups)
    memset(&rec, 0, sizeof(rec))
    rec.subject = subject
    rec.subject_len = <uint16_t>len(subject)
    rec.reply = reply
    rec.reply_len = <uint16_t>len(reply)
    rec.headers_len = headers_len
    rec.total_len = total_len
    if size_text is not None:
        rec.size_text = size_text
        rec.size_text_len = <uint8_t>len(size_text)
    if not is_sendable(rec.subject, rec.subject_len, &rec):
        return None
    line = bytearray(leaf_head_bytes(&rec, <size_t>len(names)))
    end = put_leaf_head(line, &rec, names, <size_t>len(names), headers)
    return bytes(line[:end - <char *>line])


def take(Bucket bucket not None, int64_t now_ns, uint64_t msgs, uint64_t octets):
    """See Bucket.charge."""
    return bucket.charge(now_ns, msgs, octets)
