# cython: language_level=3
"""Filters between a transport and a session: TLS and compression."""
from libc.stdint cimport uint32_t


cdef class Filter:
    cdef readonly bint ended    # the peer has closed its direction
    cdef bint busy              # the last read left much input for a later turn

    # Accepts n received bytes. FilterError: they are invalid.
    cdef int receive(self, const char *data, size_t n) except -1
    # Decodes up to n > 0 bytes into `room`; 0 = nothing until more is received.
    cdef Py_ssize_t read(self, char *room, size_t n) except -1
    # Encodes a buffer; part of the result may stay in the filter until flush.
    cdef bytes send(self, object data)
    # The rest in the filter, so that the peer can decode everything that was sent.
    cdef bytes flush(self)
    # Output of the filter itself.
    cdef bytes pending(self)
    # The final output, when nothing more is sent.
    cdef bytes finish(self)


cdef class Deflate(Filter):
    cdef object packer
    cdef object unpacker
    cdef bytes rest             # received and not decoded
    cdef bint more              # the last read filled its buffer: there may be more


cdef class Chunks(Filter):
    cdef str title              # for errors
    cdef tuple identifiers      # identifiers that a stream may begin with; the first one is sent
    # Limits of a chunk: when it is received, compressed or plain, and when it is sent.
    cdef size_t packed_max, plain_max, piece_max
    cdef public bint packs      # output is compressed; otherwise it is only put into chunks
    cdef size_t pack_min        # fewer bytes are not compressed
    cdef object codec           # the module of python-snappy
    cdef bint begun             # the peer's identifier was received
    cdef bint introduced        # ours has been sent
    # Received bytes that are not decoded: `len` bytes from `taken` on.
    cdef char *rest
    cdef size_t len, taken, cap
    cdef size_t skip            # remaining bytes of a chunk to skip
    cdef bytes plain            # a decoded chunk
    cdef size_t given           # bytes of it that were read

    cdef bint next_chunk(self) except -1
    cdef bytes content(self, int kind, const unsigned char *p, size_t n)
    # The plain bytes of a block. FilterError.
    cdef bytes unpack(self, const unsigned char *p, size_t n)
    cdef void take(self, size_t n) noexcept
    cdef int encode(self, bytes part, list parts) except -1


# The checksum of a chunk with this content.
cdef uint32_t masked_sum(const char *p, size_t n) noexcept nogil


cdef class Snappy(Chunks):
    pass


cdef class Tls(Filter):
    cdef object incoming        # ssl.MemoryBIO
    cdef object outgoing
    cdef readonly object link   # ssl.SSLObject
    cdef bint looks_like_tls    # the input so far begins like a TLS record
    cdef bint received
    cdef object read_link, write_link
    cdef bint more              # the last read filled its buffer: there may be more of a record
    # The record that is being received: its header, the received part, the missing part.
    cdef unsigned char head[5]
    cdef size_t head_len, incomplete, missing
    cdef bint not_records  # the input is not a sequence of records, and is not followed any more

    cdef void follow_records(self, const unsigned char *data, size_t n) noexcept
    cdef bint handshake(self) except -1
