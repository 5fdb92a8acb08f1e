# cython: language_level=3
"""What a client is told about a command that is wrong."""
from broker.protocols.nsq.wire cimport op_t, scan_t

# The payload of the error frame for an op whose `wrong` is set, or of an unknown kind.
cdef bytes refusal(const op_t *op, const scan_t *limits)
# The same for a command whose rest will not come; None when not even its line is there.
cdef bytes unread(const scan_t *state)
cdef str command_of(int kind)
