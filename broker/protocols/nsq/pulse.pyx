# cython: language_level=3
"""Heartbeats, and the end of patience with a client that is silent."""
from libc.stdint cimport int64_t

from broker.protocols.nsq.refusal cimport unread
from broker.protocols.nsq.session cimport NsqSession
from broker.protocols.nsq.wire cimport FRAME_RESPONSE

from broker.protocols.nsq import limits

cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF

cdef bytes HEARTBEAT = b'_heartbeat_'


cdef int set_timer(NsqSession session) except -1:
    """Ring for the next heartbeat or the end of patience, whichever comes first."""
    cdef int64_t due_ns = NEVER
    if session.closing:
        due_ns = session.face.turn.now_ns + (session.silence_ns or limits.NSQ_HEARTBEAT_INTERVAL)
    else:
        if session.tick_ns:
            due_ns = session.next_tick_ns
        if session.silence_ns:
            due_ns = min(due_ns, session.spoke_ns + 2 * session.silence_ns)
    if due_ns == NEVER:
        session.face.turn.disarm(session)
    else:
        session.face.turn.arm(session, due_ns)
    return 0


cdef int tick(NsqSession session, int64_t now_ns) except -1:
    """A heartbeat is due, or the client has been silent for too long."""
    cdef bytes payload
    if session.stalled and session.link not in session.topic.stalled:
        session.stalled = False
    if session.hold or session.stalled:
        session.spoke_ns = now_ns
    if session.tick_ns and now_ns >= session.next_tick_ns:
        session.next_tick_ns += session.tick_ns
        if session.next_tick_ns <= now_ns:
            session.next_tick_ns = now_ns + session.tick_ns
        session.put_frame(HEARTBEAT, FRAME_RESPONSE)
    if session.silence_ns and now_ns >= session.spoke_ns + 2 * session.silence_ns:
        payload = unread(&session.scanner)
        if payload is None:
            session.link.close()
        else:
            session.fatal(payload)
    return 0
