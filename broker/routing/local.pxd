# cython: language_level=3
"""A subscriber in Python that collects its messages in a list."""
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink


cdef class Subscriber(Sink):
    cdef Router router
    cdef dict subs              # sid -> address of its sub_t
    cdef readonly list heard    # (sid, subject, reply, data) of each message, in order
    cdef public bint deaf       # accepts no message: the next member of a group gets it
