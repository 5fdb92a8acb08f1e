# cython: language_level=3
"""The session of a connection before its protocol is known."""
from broker.runtime.interfaces cimport Session


cdef class HandoverSession(Session):
    cdef readonly object link       # net.conn.Conn, from opened to closed
    cdef readonly object owner      # the owner, which decides about the connection
    cdef public bytearray head      # input so far; the owner uses it
