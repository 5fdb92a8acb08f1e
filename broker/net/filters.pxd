# cython: language_level=3
"""What may stand between a transport and a session: TLS, and compressions."""


cdef class Filter:
    cdef readonly bint ended    # the peer said that it sends no more
    cdef bint busy              # the last read ended with much more to look at: for a later turn

    # Takes n bytes as they came; FilterError when they make no sense.
    cdef int receive(self, const char *data, size_t n) except -1
    # Decodes up to n > 0 bytes into room; 0 = no more until something else is received.
    cdef Py_ssize_t read(self, char *room, size_t n) except -1
    # Encodes a buffer for the wire; part of it may stay inside until flush.
    cdef bytes send(self, object data)
    # Everything that is still inside, so that the peer can decode all that was sent.
    cdef bytes flush(self)
    # What the filter itself has to say to the peer.
    cdef bytes pending(self)
    # Its last words, when nothing more is sent.
    cdef bytes finish(self)


cdef class Deflate(Filter):
    cdef object packer
    cdef object unpacker
    cdef bytes rest             # received and not yet decoded
    cdef bint more              # the last read filled its room: there may be more inside


cdef class Snappy(Filter):
    cdef bytes rest             # received, decoded up to `taken`
    cdef size_t taken
    cdef bytes plain            # a decoded chunk
    cdef size_t given           # how much of it was read
    cdef size_t skip            # bytes of a chunk nobody needs that are still to come
    cdef bint begun             # the peer's stream identifier has come
    cdef bint introduced        # ours has been sent

    cdef bint next_chunk(self) except -1
    cdef bytes unpack(self, int kind, bytes chunk)


cdef class Tls(Filter):
    cdef object incoming        # ssl.MemoryBIO
    cdef object outgoing
    cdef readonly object link   # ssl.SSLObject
    cdef bint spoken_to         # what came begins as a TLS record does, as far as one can see
    cdef bint received

    cdef bint handshake(self) except -1
