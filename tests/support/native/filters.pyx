# cython: language_level=3
"""The filters between a transport and a session: TLS, compression, WebSocket."""
from cpython.bytes cimport PyBytes_AS_STRING

from broker.net import limits
from broker.net.filters cimport Filter, Tls


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


def shake(Tls f not None, data):
    """Continue the handshake with `data`: whether it is complete, and what is sent. FilterError."""
    cdef bytes piece = bytes(data)
    f.receive(PyBytes_AS_STRING(piece), <size_t>len(piece))
    cdef bint complete = f.handshake()
    return complete, f.pending()


def output(Tls f not None):
    """What the filter sends by itself."""
    return f.pending()


def finish(Tls f not None):
    """The last output."""
    return f.finish()


def count_reads(Tls f not None):
    """A list that from now on gets the result of each read of OpenSSL; None for one that failed."""
    found = []
    inner = f.read_link

    def read(*arguments):
        try:
            got = inner(*arguments)
        except Exception:
            found.append(None)
            raise
        found.append(got)
        return got

    f.read_link = read
    return found
