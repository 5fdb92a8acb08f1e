# cython: language_level=3
"""Access: who may read or write a log, decided in one place for all protocols.

A protocol authenticates its own clients (NATS users and their permissions, secrets of NSQ's AUTH,
tokens of the bulk API). What their rights mean for a log is decided here:

    an NSQ client                               may_use_topic
    a NATS client, by publishing                crossings
    a NATS client, by the streaming service     may_use_channel, may_use_inbox, is_own
    the bulk API                                a token names logs as they are named here

Topics and channels are logs. A channel is a log of the protocol "stan". While something crosses
between NSQ and NATS Streaming, both have one set of names; while nothing does, the log of a channel
is called `stan/NAME`, which no topic can be.
"""
from broker.engine.log.log cimport Log
from broker.runtime.interfaces cimport RIGHT_READ, RIGHT_WRITE, Session

INBOX = '_INBOX.'       # where clients expect answers; no log ever has such a name


STAN = 'stan'           # Log.protocol of a channel
APART = STAN + '/'      # before the name of a channel that no topic shares
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
        """Whether channels have names of their own."""
        return not (self.stan_to_nsq or self.nsq_to_stan)

    def log_name(self, str channel):
        """The name of a channel's log."""
        return APART + channel if self.is_apart else channel

    cdef bint may_use_topic(self, Log log, int right) noexcept:
        """NSQ clients use the log of a channel as far as messages may cross."""
        if log.protocol is None:
            return True
        if self.is_apart:
            return False
        return self.stan_to_nsq if right == RIGHT_READ else self.nsq_to_stan

    def may_topic(self, Log log, int right):
        """`may_use_topic` for Python code."""
        return self.may_use_topic(log, right)

    def crossings(self, Log log):
        """(to_live, from_live) for a channel's log. What NSQ clients may write there reaches
        NATS only if topics do; what is published with NATS is stored where they may read it only
        if it is for topics."""
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
        """Whether the service may publish to this subject for a client.

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
        """Whether something that belongs to `owner` belongs to the session's user. Things from
        before owners were stored (None) belong to every user."""
        return owner is None or session.owner == owner
