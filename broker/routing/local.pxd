# cython: language_level=3
"""A subscriber in Python: what the router brings ends in a list."""
from broker.routing.router cimport Router
from broker.runtime.interfaces cimport Sink


cdef class Subscriber(Sink):
    cdef Router router
    cdef dict subs              # sid -> address of its sub_t
    cdef readonly list heard    # (sid, subject, reply, data) of each message, in order
    cdef public bint deaf       # takes nothing: the next member of a group is asked
