# cython: language_level=3
"""IDENTIFY, upgrades and AUTH.

The answer to IDENTIFY is plain; TLS begins behind it and answers OK; compression begins behind
that and answers OK too. Commands behind AUTH wait for the auth server, each connection for itself.
"""
import functools
import logging

from libc.stdint cimport int64_t
from libc.string cimport memset

from broker.protocols.nsq.pulse cimport set_timer
from broker.protocols.nsq.refusal cimport command_of
from broker.protocols.nsq.session cimport HOLD_AUTH, HOLD_ORDER, NsqSession
from broker.protocols.nsq.wire cimport (
    FRAME_RESPONSE, OP_DPUB, OP_IDENTIFY, OP_MPUB, OP_PUB, OP_SUB, OP_UNKNOWN, WRONG_LINE,
    op_t)

from broker import errors, limits
from broker.errors import go_quote, nsq_text
from broker.protocols.nsq.auth import AuthError
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
        identity.response(config, offer, session.face.auth is not None), FRAME_RESPONSE)
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
    session.guarded = session.face.auth is not None
    session.put_frame(OK, FRAME_RESPONSE)
    if session.packing:
        compress(session)


cdef void compress(NsqSession session) except *:
    session.link.compress(session.packing, session.identity.level(session.face.config))
    session.put_frame(OK, FRAME_RESPONSE)


# --- AUTH


cdef void authenticate(NsqSession session, bytes secret) except *:
    if session.grant is not None:
        session.fatal(nsq_text(errors.NSQ_AUTH_ALREADY))
    elif session.face.auth is None:
        session.fatal(nsq_text(errors.NSQ_AUTH_DISABLED))
    else:
        session.secret = secret
        ask(session, True)


cdef void ask(NsqSession session, bint first) except *:
    """Send the secret to the auth server; the connection is not read until it answers."""
    peer = session.link.peer
    session.hold_for(HOLD_AUTH)
    session.face.auth.ask(
        session.secret, peer[0] if isinstance(peer, tuple) else '',
        session.link.tls is not None, session.link.client_name,
        functools.partial(answered, session, first))


def answered(NsqSession session, bint first, answer):
    """The auth server's Grant, or an AuthError."""
    session.hold &= ~HOLD_AUTH
    if session.link is None or session.closing:
        return
    if isinstance(answer, AuthError):
        LOG.warning('client %s: AUTH failed: %s', session.remote_address, answer)
        session.fatal(nsq_text(errors.NSQ_AUTH_FAILED))
        return
    session.grant = answer
    if first and not answer.authorizations:
        session.fatal(nsq_text(errors.NSQ_AUTH_NOTHING))
        return
    if first:
        session.put_frame(answer.response(), FRAME_RESPONSE)
    session.go_on()


cdef int admit(NsqSession session, op_t *op) except -1:
    cdef bint is_publish = op.kind == OP_PUB or op.kind == OP_DPUB or op.kind == OP_MPUB
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
    if session.face.auth is None or op.wrong or not (is_publish or op.kind == OP_SUB):
        return ADMIT_GO_ON
    if op.kind == OP_SUB and (not session.legal(OP_SUB) or session.silence_ns == 0):
        return ADMIT_GO_ON      # that it is refused for is told first
    return check(session, op, is_publish)


cdef bint admit_early(NsqSession session) except -1:
    cdef op_t op
    memset(&op, 0, sizeof(op))
    op.kind = OP_MPUB
    op.name = session.scanner.topic
    op.name_len = session.scanner.topic_len
    return admit(session, &op) == ADMIT_GO_ON


cdef int check(NsqSession session, op_t *op, bint is_publish) except -1:
    """Does the grant cover it? A grant that is too old is asked for again first."""
    cdef str topic, channel
    if session.grant is not None and session.grant.authorizations:
        if session.grant.expired(session.face.turn.now_ns):
            if not session.in_order():
                session.hold_for(HOLD_ORDER)
            else:
                ask(session, False)
            return ADMIT_WAIT
        topic = op.name[:op.name_len].decode()
        channel = '' if is_publish else op.text[:op.text_len].decode()
        if session.grant.allows(topic, channel):
            return ADMIT_GO_ON
        error = nsq_text(
            errors.NSQ_UNAUTHORIZED, command=command_of(op.kind),
            topic=go_quote(topic.encode()), channel=go_quote(channel.encode()))
    else:
        error = nsq_text(errors.NSQ_AUTH_FIRST, command=command_of(op.kind))
    if not session.in_order():
        session.hold_for(HOLD_ORDER)
        return ADMIT_WAIT
    session.fatal(error)
    return ADMIT_CLOSED
