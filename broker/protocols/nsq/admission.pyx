# cython: language_level=3
"""IDENTIFY and upgrades.

The answer to IDENTIFY is plain; TLS begins behind it and answers OK; compression begins behind
that and answers OK too.
"""
import logging

from libc.stdint cimport int64_t
from libc.string cimport memset

from broker.protocols.nsq.authorization cimport permitted
from broker.protocols.nsq.pulse cimport set_timer
from broker.protocols.nsq.refusal cimport command_of
from broker.protocols.nsq.session cimport HOLD_ORDER, NsqSession
from broker.protocols.nsq.wire cimport (
    FRAME_RESPONSE, OP_IDENTIFY, OP_MPUB, OP_UNKNOWN, WRONG_LINE, op_t)

from broker.protocols.nsq import errors, limits
from broker.protocols.nsq.errors import nsq_text
from broker.protocols.nsq.identify import Identity, Refused

LOG = logging.getLogger('broker.nsq')

cdef bytes OK = b'OK'


cdef void identify(NsqSession session, bytes body) except *:
    cdef int64_t now_ns = session.face.turn.now_ns
    config = session.face.config
    try:
        identity = Identity.read(body, config, session.identity)
        offer = identity.offer(
            config, session.face.certificates is not None and session.link.tls is None,
            session.packing == '')
    except Refused as problem:
        session.fatal(problem.payload)
        return
    session.identity = identity
    wait_ns = identity.wait_ns(config)
    session.silence_ns = identity.heartbeat_interval_ns
    session.touch_wait_ns = wait_ns
    if not session.identified:
        session.identified = True
        session.tick_ns = identity.heartbeat_interval_ns
        session.next_tick_ns = now_ns + session.tick_ns
        session.consumer.ack_wait_ns = wait_ns
        session.consumer.sample = identity.sample_rate
    set_timer(session)
    session.put_frame(
        identity.response(config, offer, session.face.authority is not None), FRAME_RESPONSE)
    session.packing = offer.packing or session.packing
    if offer.tls:
        session.upgrading = True
        session.link.secure(session.face.certificates.context, limits.NSQ_TLS_TIMEOUT)
    elif offer.packing:
        session.upgrading = True
        compress(session)


cdef void go_secure(NsqSession session, str cause) except *:
    if cause is not None:
        LOG.info('client %s: %s', session.remote_address, cause)
        session.fatal(nsq_text(errors.NSQ_UPGRADE_FAILED, cause=cause))
        return
    session.guarded = session.warrant is not None
    session.put_frame(OK, FRAME_RESPONSE)
    if session.packing:
        compress(session)


cdef void compress(NsqSession session) except *:
    session.link.compress(session.packing, session.identity.level(session.face.config))
    session.put_frame(OK, FRAME_RESPONSE)


cdef int admit(NsqSession session, op_t *op) except -1:
    if op.kind == OP_IDENTIFY or op.wrong == WRONG_LINE:
        return ADMIT_GO_ON
    if session.face.tls_required and session.link.tls is None:
        if not session.in_order():
            session.hold_for(HOLD_ORDER)
            return ADMIT_WAIT
        name = op.name[:op.name_len].decode('utf-8', 'surrogateescape') if (
            op.kind == OP_UNKNOWN) else command_of(op.kind)
        session.fatal(nsq_text(errors.NSQ_TLS_REQUIRED, command=name))
        return ADMIT_CLOSED
    if session.warrant is None or permitted(session, op):
        return ADMIT_GO_ON
    return ADMIT_WAIT if session.hold else ADMIT_CLOSED


cdef bint admit_early(NsqSession session) except -1:
    cdef op_t op
    memset(&op, 0, sizeof(op))
    op.kind = OP_MPUB
    op.name = session.scanner.topic
    op.name_len = session.scanner.topic_len
    return admit(session, &op) == ADMIT_GO_ON
