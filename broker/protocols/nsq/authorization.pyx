# cython: language_level=3
"""What one connection may do, where auth servers are asked.

    AUTH -> Authority.ask ... take_grant -> the answer
    SUB, PUB, DPUB, MPUB -> permitted -> the grant; past its time -> Authority.ask, and again

While an auth server is asked the session is held: commands wait in the connection's buffer, in
their order. Publishing to the topic of the last publish costs one comparison.
"""
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp

from broker.protocols.nsq.refusal cimport command_of
from broker.protocols.nsq.session cimport (
    HOLD_ANSWER, HOLD_ORDER, STATE_INIT, NsqSession)
from broker.protocols.nsq.wire cimport (
    FRAME_RESPONSE, OP_DPUB, OP_MPUB, OP_PUB, OP_SUB, WRONG_SIZE, op_t)

from broker.protocols.nsq import errors, limits
from broker.base.gotext import go_quote
from broker.protocols.nsq.errors import nsq_text
from broker.protocols.nsq.auth import Peer


cdef class Warrant:
    pass


cdef bint permitted(NsqSession session, const op_t *op) except *:
    if op.kind == OP_PUB or op.kind == OP_DPUB:
        return op.wrong or may_publish(session, op.kind, op.name, op.name_len)
    if op.kind == OP_MPUB:
        # nsqd looks before it reads the body, so what is wrong with that comes second
        return (op.wrong and op.wrong < WRONG_SIZE) or (
            may_publish(session, op.kind, op.name, op.name_len))
    if op.kind == OP_SUB and not op.wrong and session.state == STATE_INIT and session.silence_ns:
        return in_turn(session) and granted(
            session, op.kind, op.name[:op.name_len], op.text[:op.text_len])
    return True


cdef bint may_publish(NsqSession session, int kind, const char *name, uint32_t n) except *:
    cdef Warrant warrant = session.warrant
    if warrant.topic is not None and session.face.turn.now_ns < warrant.until_ns and (
            n == <uint32_t>len(warrant.topic)) and (
            memcmp(name, <const char *>warrant.topic, n) == 0):
        return True
    if warrant.topics is not None and session.face.turn.now_ns < warrant.until_ns and (
            name[:n] in warrant.topics):
        warrant.topic = name[:n]
        return True
    if in_turn(session) and granted(session, kind, name[:n], b''):
        warrant.topic = name[:n]
        if warrant.topics is None or len(warrant.topics) >= limits.NSQ_AUTH_TOPICS_MAX:
            warrant.topics = set()
        warrant.topics.add(warrant.topic)
        return True
    return False


cdef bint in_turn(NsqSession session) except *:
    """Refusals and questions wait until every publish before them is answered."""
    if session.in_order():
        return True
    session.hold_for(HOLD_ORDER)
    return False


cdef bint granted(NsqSession session, int kind, bytes topic, bytes channel) except *:
    cdef Warrant warrant = session.warrant
    if warrant.grant is None:
        session.fatal(nsq_text(errors.NSQ_AUTH_FIRST, command=command_of(kind)))
    elif session.face.turn.now_ns >= warrant.until_ns:
        ask(session)
    elif warrant.grant.allows(topic.decode(), channel.decode()):
        return True
    else:
        session.fatal(nsq_text(
            errors.NSQ_UNAUTHORIZED, command=command_of(kind), topic=go_quote(topic),
            channel=go_quote(channel)))
    return False


cdef void authenticate(NsqSession session, bytes secret) except *:
    cdef Warrant warrant = session.warrant
    if warrant is None:
        session.fatal(nsq_text(errors.NSQ_AUTH_DISABLED))
    elif warrant.grant is not None:
        session.fatal(nsq_text(errors.NSQ_AUTH_SET))
    else:
        warrant.secret = secret
        warrant.fresh = True
        ask(session)


cdef void ask(NsqSession session) except *:
    cdef Warrant warrant = session.warrant
    session.hold_for(HOLD_ANSWER)
    peer = session.link.peer
    who = Peer(
        peer[0] if isinstance(peer, tuple) else '', session.link.tls is not None,
        session.link.client_name)
    warrant.asking = session.face.authority.ask(who, warrant.secret, session.granted)


cdef void take_grant(NsqSession session, object grant) except *:
    cdef Warrant warrant = session.warrant
    cdef bint fresh = warrant.fresh
    warrant.asking = None
    warrant.fresh = False
    if session.link is None or session.closing:
        return
    session.face.turn.tick()
    if grant is None:
        session.fatal(nsq_text(errors.NSQ_AUTH_FAILED))
        return
    warrant.grant = grant
    warrant.topic = warrant.topics = None
    warrant.until_ns = session.face.turn.now_ns + <int64_t>grant.ttl_ns
    if fresh and not grant.authorizations:
        session.fatal(nsq_text(errors.NSQ_AUTH_NONE))
        return
    if fresh:
        session.put_frame(grant.response(), FRAME_RESPONSE)
    session.release(HOLD_ANSWER)


cdef void forget(Warrant warrant) noexcept:
    if warrant is not None and warrant.asking is not None:
        warrant.asking.cancel()
        warrant.asking = None
