"""Limits and defaults of sockets, buffers, TLS, WebSocket and HTTP listeners.

Times are nanoseconds, sizes are bytes, unless a name says otherwise.
"""

from __future__ import annotations

from typing import Final

from broker.base.units import KIB, MIB, MINUTE, MS, SECOND, US

# --- loop and buffers -------------------------------------------------------------------------

BUSY_POLL: Final = 50 * US  # a look for the next event before the loop sleeps
BUSY_POLL_MAX: Final = 10 * MS
BUSY_POLL_PROCESSORS: Final = 2  # with fewer, peers on this machine could not run meanwhile
SENDER_PROCESSORS: Final = 2  # with fewer, a second thread only interrupts the loop
RECEIVE_BUFFER: Final = 64 * KIB  # one per loop; the largest read
READ_BYTES_MAX: Final = 512 * KIB  # of one connection per turn; others wait. NSQ has a smaller one
CHUNK_SMALL: Final = 4 * KIB  # an answer or a few messages
CHUNK_LARGE: Final = 128 * KIB  # output of one read for one peer; written while in the cache
# Output that waits behind a send of the second thread. Beyond the first limit the loop sends
# itself; beyond SEND_WAIT_MAX it waits for the end of that send.
SEND_BEHIND_MAX: Final = 2 * CHUNK_LARGE
SEND_WAIT_MAX: Final = 1 * MIB
CHUNKS_POOLED_MAX: Final = 16 * MIB  # free chunks kept for reuse, per size
ACCEPT_BACKLOG: Final = 4096  # connections that the kernel queues while the loop is busy
FREE_PORT_TRIES: Final = 16  # attempts to find a port that is free in IPv4 and IPv6
HTTP_LINE_MAX: Final = 64 * KIB  # of a request's first line, and of a header
HTTP_HEAD_MAX: Final = 1 * MIB  # of a request's first line with all its headers, as Go
HTTP_HEADER_TIMEOUT: Final = 10 * SECOND  # from the first byte of a request to its complete header
HTTP_IDLE_TIMEOUT: Final = 5 * MINUTE  # between requests of one connection
HTTP_TLS_TIMEOUT: Final = 10 * SECOND  # of a handshake
HTTP_BODY_GRACE: Final = 30 * SECOND  # of a body at any rate; then the minimum rate applies
HTTP_BODY_RATE: Final = 4 * KIB  # bytes per second, on average
HTTP_WRITE_TIMEOUT: Final = 60 * SECOND  # for a peer that reads nothing of its answer
HTTP_ENDED_GRACE: Final = 10 * SECOND  # of an answer, once the peer has ended its side
HTTP_INVALID_APART: Final = 1 * MINUTE  # between log lines about requests that are no HTTP
HTTP_CAUSES_MAX: Final = 16  # of one exception
# Time per turn for the input of one connection: a body in chunks of one byte costs more to parse
# than to send.
HTTP_TURN: Final = 2 * MS
HTTP_PIECE: Final = 16 * KIB  # of the input, parsed before the time is looked at
HTTP_LOAD_AGAIN: Final = 1 * SECOND  # after an application could not be loaded
HTTP_LOOK: Final = 1 * SECOND  # between checks of all these times
HTTP_FILES_DIVISOR: Final = 8  # share of one HTTP listener in the open file limit
HTTP_CONNECTIONS_MIN: Final = 16  # of one listener, even with a small open file limit
HTTP_CONNECTIONS_MAX: Final = 65_536
HTTP_ROOM_LOOKS: Final = 16  # idle connections checked for one that can be closed

# Descriptors of the open file limit that TCP listeners leave to the logs and everything else.
OPEN_FILES_KEPT_DIVISOR: Final = 16
OPEN_FILES_KEPT_MIN: Final = 32
OPEN_FILES_KEPT_MAX: Final = 1024
OPEN_FILES_HTTP_DIVISOR: Final = 4  # as a share of these: further ones, left to HTTP listeners
UMASK: Final = 0o027  # of files that a server creates
CLOSE_GRACE: Final = 5 * SECOND  # time for peers to read their last bytes when a listener closes
DECODE_BYTES_MAX: Final = READ_BYTES_MAX  # of one connection per turn, after TLS and compression
DECODE_PIECE: Final = 1 * KIB  # cost of each piece, in addition to its bytes
ENCODE_BYTES_MAX: Final = 1 * MIB  # compressed before the first of it is written
HANDSHAKE_SLICE: Final = 2 * MS  # of a loop turn for TLS handshakes; one may take a millisecond
TLS_RECORD_BYTES: Final = 16 * KIB  # the largest record (RFC 8446, 5.1)

assert CHUNK_SMALL < CHUNK_LARGE
assert RECEIVE_BUFFER < CHUNK_LARGE
assert RECEIVE_BUFFER <= READ_BYTES_MAX

# --- WebSocket and TLS -------------------------------------------------------------------------

WEBSOCKET_FRAMES_MAX: Final = 1_024  # of one connection per turn, if they are empty
WEBSOCKET_PACK_MIN: Final = 64  # bytes; shorter messages are not compressed
WEBSOCKET_DEFLATE_LEVEL: Final = 1
PROXY_HEADER: Final = 5 * SECOND  # from accept to a complete header, as nats-server
WEBSOCKET_HANDSHAKE: Final = 10 * SECOND  # from accept to a complete request, by default
WEBSOCKET_UPGRADES_MAX: Final = 4_096  # incomplete requests; one more closes the oldest
WEBSOCKET_REQUEST_MAX: Final = 64 * KIB  # bytes of one with its headers

# --- HTTP listeners ----------------------------------------------------------------------------

UNIX_SOCKET_PORT: Final = -1  # the port of an address whose host is the path of a unix socket

OPEN_FILES_LOOK: Final = 1 * SECOND  # interval of checks whether more files can be opened
OPEN_FILES_FEW: Final = 90  # percent of the open file limit at which a warning is logged
DEFLATE_LEVEL: Final = 6  # unless a peer requests another
