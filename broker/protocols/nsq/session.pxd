# cython: language_level=3
"""The broker's side of one NSQ connection."""
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from broker.engine.cursor.cursor cimport Cursor, consumer_t
from broker.engine.log.log cimport Log
from broker.runtime.buffers cimport OutBuf
from broker.runtime.interfaces cimport Session
from broker.protocols.nsq.authorization cimport AuthState
from broker.protocols.nsq.frontend cimport NsqFrontend
from broker.protocols.nsq.responses cimport PendingResponses
from broker.protocols.nsq.wire cimport op_t, scan_t
from broker.protocols.stream_topic cimport StreamChannel, StreamTopic

# nsqd's numbers, shown by /stats.
cdef enum State:
    STATE_INIT = 0
    STATE_SUBSCRIBED = 3
    STATE_CLOSING = 4

# Why the input of a connection is paused: bits of `paused_by`.
cdef enum PauseReason:
    PAUSE_OUTPUT = 1    # the peer does not read its responses
    PAUSE_PENDING = 2    # too many publishes wait for the log
    PAUSE_ORDER = 4     # the next command waits until every publish is answered
    PAUSE_ANSWER = 8    # a command waits for an auth server or a new channel; `end_pause` follows
    PAUSE_TURN = 16     # many topics were created in this turn; `next_turn` ends the pause

# Whether a guarded session may run a command now.
cdef enum Admit:
    ADMIT_GO_ON = 0
    ADMIT_WAIT = 1      # input is paused; the command is scanned again later
    ADMIT_CLOSED = 2    # the command was refused

# A topic that the connection has published to.
cdef struct published_t:
    PyObject *log       # owned; NULL: the slot is free
    uint64_t count      # messages since it has this slot


cdef class PublishedTopics:
    cdef published_t *slots     # owned, `cap` of them: none, or a power of two
    cdef uint32_t cap, cap_max
    cdef uint32_t used
    cdef uint32_t last          # slot of the last publish
    cdef dict earlier           # topic -> messages counted in slots that it had before; by age

    # The log of a topic that is in the table; None if it is not, or was deleted.
    cdef Log find(self, const char *name, uint32_t n)
    cdef int add(self, Log log) except -1
    # Count messages of the topic that was found or added last.
    cdef void count(self, uint32_t messages) noexcept
    # Count messages of a topic that is no log.
    cdef int count_other(self, str name, uint64_t messages) except -1
    cdef void clear(self) noexcept
    cdef uint32_t slot_of(self, const char *name, uint32_t n) noexcept
    cdef int grow(self) except -1
    cdef uint32_t put(self, Log log, uint64_t count) except *
    cdef int evict(self, const published_t *slot) except -1


cdef class NsqSession(Session):
    cdef NsqFrontend frontend
    cdef readonly object link           # net.conn.Conn, from opened to closed
    cdef OutBuf out
    cdef scan_t scanner
    cdef consumer_t consumer            # its place in `cursor`
    cdef readonly Cursor cursor         # of the subscribed channel, or None
    # The subscribed channel if its topic is a stream, or None. `consumer` is its place in it.
    cdef readonly StreamChannel channel
    cdef object opening                 # the task that opens this channel, or None
    # The last topic published to that is a stream, and the messages since it is the last one.
    cdef StreamTopic stream_topic
    cdef uint64_t stream_count
    cdef PendingResponses pending       # None before the first publish
    cdef bint waiting                   # the log of the oldest publish will call settled()
    cdef Log topic                      # of the last publish; None = none yet
    cdef PublishedTopics published      # None before the first publish
    cdef State state
    cdef bint has_magic                 # the magic was received
    cdef bint identified                # the first IDENTIFY counted for delivery
    cdef size_t unsent_before           # output bytes of a blocked peer at the last check
    cdef bint guarded                   # each command is checked by `admit`
    cdef bint upgrading                 # TLS or compression begins: drop input until then
    cdef readonly str compression       # snappy, deflate or empty
    cdef readonly AuthState authorization   # None without auth servers
    cdef bint draining                  # reads nothing more; closes after the last answer
    cdef bint stalled                   # the log's disk is too slow; the log resumes reading
    cdef int paused_by                  # PAUSE_* bits; 0 = input is not paused
    cdef int64_t heartbeat_ns           # interval of the heartbeats that are sent, 0 = none
    cdef int64_t next_heartbeat_ns      # monotonic
    cdef int64_t silence_ns             # interval of the last IDENTIFY, for deadlines; 0 = none
    cdef int64_t last_command_ns        # monotonic: time of the last whole command
    cdef int64_t touch_wait_ns          # the time by which TOUCH extends
    cdef readonly int64_t start_ns      # wall clock
    cdef readonly object identity       # identify.Identity

    cdef Py_ssize_t read_magic(self, const char *data, Py_ssize_t n)
    cdef int run_commands(self, op_t *ops, int found) except -1
    cdef bint publish(self, op_t *op) except *
    cdef bint publish_parts(self, op_t *op) except *
    cdef bint publish_to_stream(self, op_t *op) except *
    cdef uint64_t publish_parts_to_stream(self, StreamTopic topic, op_t *op,
                                          uint64_t *first) except *
    cdef int use_stream(self, StreamTopic topic) except -1
    cdef bint is_last_stream(self, const op_t *op) noexcept
    cdef int begin_publishing(self) except -1
    cdef bint refuse_publish(self, Log log, op_t *op, str cause) except *
    cdef void run_for_channel(self, op_t *op) except *
    cdef void join_stream(self, str topic, StreamChannel channel) except *
    cdef int64_t delay_of(self, const op_t *op) noexcept
    cdef Log topic_log(self, const char *name, uint32_t n)
    cdef Log find_topic(self, const char *name, uint32_t n)
    cdef void answer_not_in_flight(self, op_t *op, int code) except *
    cdef void requeue_or_touch(self, op_t *op) except *
    cdef bint in_order(self) noexcept
    cdef void run_other(self, op_t *op) except *
    cdef int wait_for_log(self) except -1
    cdef int pause_input(self, int why) except -1
    cdef bint may_create_topic(self, const op_t *op) noexcept
    cdef int end_pause(self, int why) except -1
    cdef int resume_input(self) except -1
    cdef bint pause_if_full(self) except *
    cdef void identify(self, bytes body) except *
    cdef void tls_ended(self, str cause) except *
    cdef void compress(self) except *
    cdef int admit(self, const op_t *op) except -1
    cdef bint admit_early(self) except -1
    cdef bint permitted(self, const op_t *op) except -1
    cdef bint may_publish(self, const op_t *op) except -1
    cdef bint authorized(self, int kind, bytes topic, bytes channel) except -1
    cdef void authenticate(self, bytes secret) except *
    cdef void ask_auth_server(self) except *
    cdef void apply_grant(self, object grant) except *
    cdef int set_timer(self) except -1
    cdef int check_heartbeat(self, int64_t now_ns) except -1
    cdef bint has_progressed(self, int64_t now_ns) except *
    cdef void put_frame(self, bytes payload, uint32_t frame_type) noexcept
