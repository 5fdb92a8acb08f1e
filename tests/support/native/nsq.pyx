# cython: language_level=3
"""The scanner of NSQ's V2 protocol, and the ids of its messages."""
from libc.stdint cimport uint64_t
from libc.string cimport memset

from broker.protocols.nsq.wire cimport ID_BYTES, nsq_get_id, nsq_put_id, op_t, scan, scan_t

cdef enum:
    OPS_MAX = 128


cdef class Scanner:
    cdef scan_t state

    def __init__(self, message_max, body_max, delay_max_ns, ready_max):
        memset(&self.state, 0, sizeof(scan_t))
        self.state.message_max = message_max
        self.state.body_max = body_max
        self.state.delay_max_ns = delay_max_ns
        self.state.ready_max = ready_max
        self.state.unsubscribed = True

    @property
    def unsubscribed(self):
        return bool(self.state.unsubscribed)

    @unsubscribed.setter
    def unsubscribed(self, bint value):
        self.state.unsubscribed = value

    @property
    def unfinished(self):
        """(kind, stage, messages, need) of the command at the end."""
        return self.state.kind, self.state.stage, self.state.parts, self.state.need

    def scan(self, bytes data not None):
        """(bytes used, [(kind, wrong, name, text, number, delay, index, end)])."""
        cdef op_t ops[OPS_MAX]
        cdef int found = 0
        cdef int i
        cdef size_t used = scan(&self.state, data, <size_t>len(data), ops, OPS_MAX, &found)
        out = []
        for i in range(found):
            name = b'' if ops[i].name == NULL else ops[i].name[:ops[i].name_len]
            text = b'' if ops[i].text == NULL else ops[i].text[:ops[i].text_len]
            out.append((ops[i].kind, ops[i].wrong, name, text, ops[i].number, ops[i].delay,
                        ops[i].index, ops[i].end))
        return used, out


def message_id(uint64_t seq):
    """The id of a record."""
    cdef char text[ID_BYTES]
    nsq_put_id(text, seq)
    return text[:ID_BYTES]


def message_seq(bytes text not None):
    """The seq of an id, 0 when it is invalid."""
    if len(text) != ID_BYTES:
        return 0
    return nsq_get_id(text)
