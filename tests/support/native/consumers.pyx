# cython: language_level=3
"""The texts of JetStream's consumers."""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from broker.protocols.jetstream.consumers.wire cimport (
    BODY_ACK, BODY_NAK, BODY_NEXT, ACK_NUMBERS_MAX, BODY_PROGRESS, BODY_TERM, BODY_OTHER, PULL_OK,
    SIZE_HEADER_MAX, STATUS_MAX, ack_subject_t, parse_ack_body, parse_ack_numbers,
    parse_pull, pull_t, put_ack_numbers, put_headers, put_heartbeat, put_status, read_pull)
from broker.runtime.types cimport record_t, span_t

KINDS = {
    <int>BODY_ACK: 'done', <int>BODY_NAK: 'nak', <int>BODY_PROGRESS: 'progress',
    <int>BODY_NEXT: 'next', <int>BODY_TERM: 'term', <int>BODY_OTHER: 'unknown'}


def write_ack_numbers(uint64_t deliveries, uint64_t stream_seq, uint64_t consumer_seq,
                      int64_t timestamp_ns, uint64_t pending):
    """The numbers at the end of an ack subject."""
    cdef char out[ACK_NUMBERS_MAX]
    cdef char *end = put_ack_numbers(
        out, deliveries, stream_seq, consumer_seq, timestamp_ns, pending)
    return out[:end - out]


def read_ack_numbers(bytes text not None, bint more=False):
    """(deliveries, stream seq, consumer seq, time, pending), or None if they are invalid."""
    cdef ack_subject_t ack
    if not parse_ack_numbers(text, <size_t>len(text), more, &ack):
        return None
    return ack.deliveries, ack.stream_seq, ack.consumer_seq, ack.timestamp_ns, ack.pending


def read_ack_body(bytes body not None):
    """(kind, rest) of the body of an ack."""
    cdef span_t rest
    cdef int kind = parse_ack_body(body, <size_t>len(body), &rest)
    return KINDS[kind], rest.ptr[:rest.len]


def read_pull_request(bytes body not None, bint slow=False):
    """The fields of a pull request that differ from their defaults; None: not of the usual kind."""
    cdef pull_t pull
    cdef tuple _kept
    if slow:
        _kept = read_pull(body, &pull)
    elif parse_pull(body, <size_t>len(body), &pull) != PULL_OK:
        return None
    found = {
        'batch': pull.batch, 'expires': pull.expires_ns, 'max_bytes': pull.bytes_max,
        'idle_heartbeat': pull.heartbeat_ns, 'min_pending': pull.min_pending,
        'min_ack_pending': pull.min_ack_pending, 'priority': pull.priority,
        'no_wait': bool(pull.no_wait), 'group': pull.group.ptr[:pull.group.len].decode(),
        'id': pull.id.ptr[:pull.id.len].decode()}
    return {name: value for name, value in found.items() if value}


def write_status(bytes line not None, int64_t messages=-1, int64_t nbytes=-1):
    """A status with its headers."""
    cdef char out[STATUS_MAX]
    return out[:put_status(out, line, <size_t>len(line), messages, nbytes) - out]


def write_heartbeat(uint64_t consumer_seq, uint64_t stream_seq, bytes stalled=b''):
    """An idle heartbeat."""
    cdef char out[STATUS_MAX]
    cdef char *end = put_heartbeat(out, consumer_seq, stream_seq, stalled, <size_t>len(stalled))
    return out[:end - out]


def write_headers(bytes headers not None, int64_t size, bytes pin=b''):
    """The headers of a delivery: those of the message, and further ones."""
    cdef record_t rec
    cdef bytes room = bytes(len(headers) + len(pin) + SIZE_HEADER_MAX + 32)
    cdef char *out = room
    memset(&rec, 0, sizeof(rec))
    rec.data = headers
    rec.headers_len = rec.total_len = <unsigned int>len(headers)
    return room[:put_headers(out, &rec, size, pin, <size_t>len(pin)) - out]
