# cython: language_level=3
"""Operations as a tracer is shown them, for as long as there is one (trace.py)."""
from libc.stdint cimport uint32_t

from broker.protocols.nats.client.session cimport NatsSession
from broker.protocols.nats.wire.wire cimport OP_PUB, op_t


cdef int trace(NatsSession s, op_t *op) except -1:
    """Show the operator what came in; of a run each message."""
    cdef const char *data = op.data
    cdef uint32_t _n
    words = (op.subject[:op.subject_len], op.reply[:op.reply_len], op.text[:op.text_len])
    for _n in range(op.count if op.kind == OP_PUB else 1):
        s.face.tracer.came(s, op.kind, words, data[:op.total_len], op.count)
        data += op.stride
    return 0
