# cython: language_level=3
"""The filters between a transport and a session: TLS, compression, WebSocket."""
from cpython.bytes cimport PyBytes_AS_STRING

from broker.net import limits
from broker.net.filters cimport Filter


def unpack(Filter f not None, data, size_t room=limits.RECEIVE_BUFFER):
    """Everything that comes out when `data` is received, read in pieces of `room`; FilterError."""
    cdef bytes piece = bytes(data)
    cdef bytearray space = bytearray(room)
    cdef Py_ssize_t got
    found = []
    f.receive(PyBytes_AS_STRING(piece), <size_t>len(piece))
    while True:
        got = f.read(space, room)
        if got == 0:
            return b''.join(found)
        found.append(bytes(space[:got]))


def pack(Filter f not None, data):
    """What is sent for `data`, flushed."""
    return f.send(data) + f.flush()
