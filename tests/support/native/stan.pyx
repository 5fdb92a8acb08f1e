# cython: language_level=3
"""The hot messages of NATS Streaming in protobuf's wire format."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from broker.protocols.stan.wire cimport (
    ack_t, msg_size, parse_ack, parse_pub, pub_ack_size, pub_msg_t, put_msg, put_pub_ack)
from broker.runtime.types cimport record_t, span_t


cdef bytes text_of(span_t span):
    return b'' if span.len == 0 else span.ptr[:span.len]


cdef span_t span_of(bytes text):
    cdef span_t span
    span.ptr = PyBytes_AS_STRING(text)
    span.len = <uint32_t>len(text)
    return span


cdef bytes filled(bytes out, char *end):
    if end != PyBytes_AS_STRING(out) + len(out):
        raise AssertionError('the announced size is not the size that was written')
    return out


def read_pub(bytes data not None):
    """(clientID, guid, subject, reply, data, connID) of a PubMsg, None when it is not one."""
    cdef pub_msg_t pub
    if not parse_pub(data, <size_t>len(data), &pub):
        return None
    return (text_of(pub.client_id), text_of(pub.guid), text_of(pub.subject), text_of(pub.reply),
            text_of(pub.data), text_of(pub.conn_id))


def read_ack(bytes data not None):
    """(subject, sequence) of an Ack, None when it is not one."""
    cdef ack_t ack
    if not parse_ack(data, <size_t>len(data), &ack):
        return None
    return text_of(ack.subject), ack.sequence


def write_pub_ack(bytes guid not None, bytes error not None):
    """A PubAck."""
    cdef size_t size = pub_ack_size(<size_t>len(guid), <size_t>len(error))
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    cdef char *end = put_pub_ack(PyBytes_AS_STRING(out), span_of(guid), span_of(error))
    return filled(out, end)


def write_msg(uint64_t seq, bytes subject not None, bytes reply not None, bytes headers not None,
              bytes body not None, int64_t timestamp_ns, uint32_t redelivery):
    """The MsgProto of a record."""
    cdef bytes data = headers + body
    cdef record_t rec
    memset(&rec, 0, sizeof(record_t))
    rec.seq = seq
    rec.subject = subject
    rec.subject_len = <uint16_t>len(subject)
    rec.reply = reply
    rec.reply_len = <uint16_t>len(reply)
    rec.data = data
    rec.headers_len = <uint32_t>len(headers)
    rec.total_len = <uint32_t>len(data)
    rec.timestamp_ns = timestamp_ns
    cdef size_t size = msg_size(&rec, redelivery)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    cdef char *end = put_msg(PyBytes_AS_STRING(out), &rec, redelivery)
    return filled(out, end)
