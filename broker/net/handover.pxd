# cython: language_level=3
"""A connection that is not yet what it is going to be."""
from broker.runtime.interfaces cimport Session


cdef class HandoverSession(Session):
    cdef readonly object link       # net.conn.Conn, from opened to closed
    cdef readonly object owner      # who decides what becomes of it
    cdef public bytearray head      # what has come so far; the owner's
