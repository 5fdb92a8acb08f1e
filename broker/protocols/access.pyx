# cython: language_level=3
"""Access decides which client may read or write a log, for all protocols.

A protocol authenticates its own clients (NATS users and their permissions, secrets of NSQ's AUTH,
tokens of the bulk API). This class derives the rights to a log from them:

    an NSQ client                               may_use_topic, may_use_stream
    a NATS client that publishes                crossings
    a NATS client of the streaming service      may_use_channel, may_use_inbox, is_own
    the bulk API                                none: a token lists logs by their names

Topics and channels are logs. A channel is a log of the protocol "stan". If messages cross between
NSQ and NATS Streaming in either direction, topics and channels share one set of names. Otherwise
the log of a channel is called `stan/NAME`, which is an invalid topic name.
"""
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport RIGHT_READ, RIGHT_WRITE, Session

INBOX = '_INBOX.'       # where clients expect answers; never the name of a log


STAN = 'stan'           # Log.protocol of a channel
APART = STAN + '/'      # prefix of a channel's log while names are separate
READ = RIGHT_READ
WRITE = RIGHT_WRITE


cdef class Access:
    def __init__(self, *, bint nsq_to_nats=True, bint nats_to_nsq=True, bint stan_to_nats=True,
                 bint nats_to_stan=True, bint stan_to_nsq=True, bint nsq_to_stan=True):
        """The switches of [bridge]."""
        self.stan_to_nsq = stan_to_nsq
        self.nsq_to_stan = nsq_to_stan
        self.nsq_to_nats = nsq_to_nats
        self.nats_to_nsq = nats_to_nsq
        self.stan_to_nats = stan_to_nats
        self.nats_to_stan = nats_to_stan

    @property
    def is_apart(self):
        """Whether channels and topics have separate sets of names."""
        return not (self.stan_to_nsq or self.nsq_to_stan)

    def log_name(self, str channel):
        """The log name for a channel."""
        return APART + channel if self.is_apart else channel

    cdef bint may_use_topic(self, Log log, int right) noexcept:
        """NSQ clients may use the log of a channel only as far as [bridge] lets messages cross."""
        if log.protocol is None:
            return True
        if self.is_apart:
            return False
        return self.stan_to_nsq if right == RIGHT_READ else self.nsq_to_stan

    cpdef bint may_use_stream(self, int right) noexcept:
        """NSQ clients may use a topic that is a stream of JetStream as far as [bridge] lets
        messages cross between NSQ and NATS."""
        return self.nats_to_nsq if right == RIGHT_READ else self.nsq_to_nats

    def may_topic(self, Log log, int right):
        """`may_use_topic` for Python code."""
        return self.may_use_topic(log, right)

    def crossings(self, Log log):
        """(to_live, from_live) for a channel's log. If NSQ clients may publish to the log, its
        records reach NATS subscribers only if those of topics do. If NSQ clients may read it,
        messages published with NATS are stored in it only if topics store them."""
        return (
            self.stan_to_nats and (self.nsq_to_nats or not self.may_use_topic(log, RIGHT_WRITE)),
            self.nats_to_stan and (self.nats_to_nsq or not self.may_use_topic(log, RIGHT_READ)))

    cdef bint may_use_channel(self, Session session, void *space, int right, Log log,
                              const char *channel, size_t n) except -1:
        """A channel that is shared with a subject requires the right to that subject."""
        if not (self.stan_to_nats or self.nats_to_stan) if log is None else (
                not log.to_live and log.binding is None):
            return True
        return session.may(space, right, channel, n)

    def may_use(self, Session session, object space, int right, Log log, str channel):
        """`may_use_channel` for Python code."""
        name = channel.encode()
        return self.may_use_channel(
            session, <void *>space, right, log, <const char *>name, <size_t>len(name))

    def may_use_inbox(self, Session session, object space, str inbox):
        """Whether the service may publish to this subject on behalf of a client.

        The service may publish anywhere, so the client itself must have the right to publish to
        the subject, and the right to subscribe to it. A client of another account has no rights
        here: it may use inboxes only.
        """
        cdef bytes name = inbox.encode()
        cdef const char *p = name
        cdef size_t n = <size_t>len(name)
        if session.may(<void *>space, RIGHT_WRITE, p, n):
            return session.may(<void *>space, RIGHT_READ, p, n)
        return not session.lives_in(<void *>space) and inbox.startswith(INBOX)

    def is_own(self, Session session, owner):
        """Whether something that belongs to `owner` belongs to the session's user. Items that were
        stored before owners were recorded (None) belong to every user."""
        return owner is None or session.owner == owner
