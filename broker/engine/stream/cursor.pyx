# cython: language_level=3
"""A cursor of a stream: which messages a consumer has had, and which of them it has settled.

    fresh        seq >= next_seq, and the cursor's filter matches
    in flight    has an entry: until its deadline, or in the `again` queue after it
    exhausted    its last allowed delivery was not acked: it stays in the stream, nothing is in flight
    settled      every other message below next_seq

                       sent                  ack, term, deleted
        fresh  ------------------> in flight ------------------> settled
                                    |     ^  |                      ^
             deadline, nak          v     |  |  ... the last time   | late ack
                                 (again) -+  +----> exhausted ------+

What is to be given again comes before what is fresh, and max_ack_pending does not hold it back.
Consumer seqs count deliveries; an entry keeps the one of its first delivery, for the ack floor.
"""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc

from broker.engine.cursor.acks cimport AckSet
from broker.engine.cursor.inflight cimport ENTRY_AGAIN, ENTRY_SENT, Inflight, entry_t
from broker.engine.cursor.position cimport READ_AGAIN, READ_NOTHING, Position
from broker.engine.log.log cimport Log
from broker.engine.log.record cimport stored_t
from broker.runtime.heap cimport heap_peek, heap_push, heap_remove, heap_update
from broker.runtime.interfaces cimport Session
from broker.runtime.turn cimport PHASE_PUMP
from broker.runtime.types cimport heap_item_t

cdef enum:
    ATTEMPTS_MAX = 0xFFFF

POLICIES = {'none': ACK_NONE, 'all': ACK_ALL, 'explicit': ACK_EXPLICIT}


cdef class CursorOwner(Session):
    cdef void woken(self) noexcept:
        pass

    cdef void exhausted(self, uint64_t seq, uint32_t deliveries) noexcept:
        pass

    cdef void dropped(self, uint64_t seq, uint64_t consumer_seq, uint32_t deliveries) noexcept:
        pass

    cdef void durable(self, uint64_t ticket) noexcept:
        pass


cdef class StreamCursor(LogReader):
    def __init__(self, Log log, str name, uint64_t start, *, ack_policy='explicit',
                 ack_wait_ns=30 * 10**9, backoff_ns=(), max_deliver=0, max_ack_pending=0):
        """Begins at `start`. 0 = no limit."""
        self.log = log
        self.shared = log.shared
        self.name = name
        self.acks = AckSet(start)
        self.inflight = Inflight()
        self.position = Position(log, self)
        self.next_seq = start
        self.delivered_seq = self.floor_seq = start - 1
        self.ack_policy = POLICIES[ack_policy]
        self.update(ack_wait_ns=ack_wait_ns, backoff_ns=backoff_ns, max_deliver=max_deliver,
                    max_ack_pending=max_ack_pending)
        log.add_cursor(self)

    def __dealloc__(self):
        free(self.steps_ns)

    cdef void attach(self, CursorOwner owner) noexcept:
        self.owner = owner

    def update(self, *, ack_wait_ns, backoff_ns=(), max_deliver=0, max_ack_pending=0):
        """Change the settings; deadlines that run already stay."""
        cdef uint32_t i
        cdef int64_t *steps = <int64_t *>malloc(max(1, len(backoff_ns)) * sizeof(int64_t))
        if steps == NULL:
            raise MemoryError
        for i in range(<uint32_t>len(backoff_ns)):
            steps[i] = backoff_ns[i]
        free(self.steps_ns)
        self.steps_ns = steps
        self.steps = <uint32_t>len(backoff_ns)
        self.ack_wait_ns = ack_wait_ns
        self.max_deliver = max_deliver
        self.max_ack_pending = max_ack_pending
        self.wake()

    # --- delivering

    cdef int peek(self, delivery_t *d) noexcept:
        cdef stored_t s
        cdef entry_t place
        cdef entry_t *e = NULL
        if not self.closed and not self.paused_until_ns:
            while self.inflight.again_first:
                e = self.inflight.at(self.inflight.again_first)
                place.seq = e.seq
                place.segment = 0
                if self.position.read_entry(&place, &s) > 0:
                    break
                self.drop(e)
            if self.inflight.again_first or self.fresh(&s):
                self.peeked = self.inflight.again_first
                d.rec = s.rec
                d.deliveries = e.deliveries + 1 if self.peeked else 1
                d.rec.attempts = <uint16_t>min(d.deliveries, <uint32_t>ATTEMPTS_MAX)
                d.consumer_seq = self.delivered_consumer_seq + 1
                d.pending = self.count_pending() - (0 if self.peeked else 1)
                return 1
        self.waiting = True
        return 0

    cdef bint fresh(self, stored_t *s) noexcept:
        """Find the next message that was not delivered yet."""
        cdef int found
        while self.next_seq < self.log.frontier:
            if self.ack_policy != ACK_NONE and self.max_ack_pending and (
                    self.inflight.size >= self.max_ack_pending):
                return False
            found = self.position.read(self.next_seq, s)
            if found == READ_NOTHING:
                return False
            if found == READ_AGAIN:
                continue
            if s.rec.subject_len == 0:
                s.rec.subject = <const char *>self.log.subject
                s.rec.subject_len = <uint16_t>len(self.log.subject)
            self.next_seq = s.rec.seq
            self.peeked_size = s.size
            return True
        return False

    cdef void sent(self) noexcept:
        cdef entry_t *e
        self.delivered_consumer_seq += 1
        self.last_delivered_ns = self.shared.turn.wall_ns
        if self.peeked:
            e = self.inflight.pop_again()
            e.deliveries += 1
            self.redelivered += e.deliveries == 2
            self.set_sent(e)
        else:
            self.delivered_seq = self.next_seq
            self.position.advance(self.peeked_size)
            self.next_seq += 1
            if self.ack_policy == ACK_NONE:
                self.floor_seq = self.delivered_seq
                self.floor_consumer_seq = self.delivered_consumer_seq
            else:
                e = self.inflight.make(self.delivered_seq)
                e.deliveries = 1
                e.timer.owner = <void *><size_t>self.delivered_consumer_seq
                self.link(e)
                self.set_sent(e)

    cdef void set_sent(self, entry_t *e) noexcept:
        e.state = ENTRY_SENT
        e.mark = self.shared.turn.wall_ns
        e.timer.due_ns = self.shared.turn.now_ns + self.wait_of(e)
        heap_push(&self.inflight.due, &e.timer)
        self.inflight.sent += 1
        self.rearm()

    cdef int64_t wait_of(self, const entry_t *e) noexcept:
        """How long a delivery waits for its ack."""
        if self.steps:
            return self.steps_ns[min(e.deliveries, self.steps) - 1]
        return self.ack_wait_ns

    cdef void link(self, entry_t *e) noexcept:
        """Put an entry behind all others, in the order of seqs."""
        e.before = self.newest
        e.after = 0
        if self.newest:
            self.inflight.at(self.newest).after = e.timer.tag
        else:
            self.oldest = e.timer.tag
        self.newest = e.timer.tag

    # --- what the consumer says

    cdef int known(self, uint64_t seq) noexcept:
        return ACK_REPEATED if seq < self.next_seq else ACK_UNKNOWN

    cdef int ack(self, uint64_t seq) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL:
            return self.known(seq)
        self.last_acked_ns = self.shared.turn.wall_ns
        self.settle(e)
        self.move_floor()
        self.wake()
        return ACK_DONE

    cdef int ack_all(self, uint64_t seq, uint64_t consumer_seq) noexcept:
        cdef entry_t *e
        if seq >= self.next_seq:
            return ACK_UNKNOWN
        if seq <= self.floor_seq or (consumer_seq and consumer_seq <= self.floor_consumer_seq):
            return ACK_REPEATED
        self.last_acked_ns = self.shared.turn.wall_ns
        while self.oldest:
            e = self.inflight.at(self.oldest)
            if e.seq > seq:
                break
            self.settle(e)
        self.move_floor()
        self.wake()
        return ACK_DONE

    cdef int nak(self, uint64_t seq, int64_t delay_ns) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL:
            return self.known(seq)
        if e.state == ENTRY_AGAIN:
            return ACK_REPEATED
        if delay_ns > 0:
            heap_update(&self.inflight.due, &e.timer, self.shared.turn.now_ns + delay_ns)
            self.rearm()
        else:
            self.expire(e)
        self.wake()
        return ACK_DONE

    cdef int progress(self, uint64_t seq) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL or e.state == ENTRY_AGAIN:
            return self.known(seq)
        e.mark = self.shared.turn.wall_ns
        heap_update(&self.inflight.due, &e.timer, self.shared.turn.now_ns + self.wait_of(e))
        self.rearm()
        return ACK_DONE

    cdef int term(self, uint64_t seq) noexcept:
        return self.ack(seq)

    cdef void settle(self, entry_t *e) noexcept:
        """The message of an entry is done with."""
        if e.state == ENTRY_AGAIN:
            self.inflight.take_again(e)
        else:
            heap_remove(&self.inflight.due, &e.timer)
            self.inflight.sent -= 1
        if e.deliveries > 1:
            self.redelivered -= 1
        if e.before:
            self.inflight.at(e.before).after = e.after
        else:
            self.oldest = e.after
        if e.after:
            self.inflight.at(e.after).before = e.before
        else:
            self.newest = e.before
        self.inflight.free_entry(e)

    cdef void move_floor(self) noexcept:
        """All below the oldest message in flight is settled; without one, all that was delivered."""
        cdef entry_t *e
        if self.oldest == 0:
            self.floor_seq = self.delivered_seq
            self.floor_consumer_seq = self.delivered_consumer_seq
            return
        e = self.inflight.at(self.oldest)
        self.floor_seq = max(self.floor_seq, e.seq - 1)
        self.floor_consumer_seq = max(self.floor_consumer_seq, <uint64_t>e.timer.owner - 1)

    cdef void drop(self, entry_t *e) noexcept:
        """The message of an entry is not in the stream any more."""
        cdef uint64_t seq = e.seq, consumer_seq = <uint64_t>e.timer.owner
        cdef uint32_t deliveries = e.deliveries
        self.settle(e)
        self.move_floor()
        if self.owner is not None:
            self.owner.dropped(seq, consumer_seq, deliveries)
        self.wake()

    # --- time

    cdef void expire(self, entry_t *e) noexcept:
        """The entry, in flight, waits to be given again, unless that was the last time."""
        cdef uint64_t seq = e.seq
        cdef uint32_t deliveries = e.deliveries
        if self.max_deliver and deliveries >= self.max_deliver:
            self.settle(e)
            if self.owner is not None:
                self.owner.exhausted(seq, deliveries)
            return
        heap_remove(&self.inflight.due, &e.timer)
        self.inflight.sent -= 1
        self.inflight.push_again(e)

    cdef void expired(self, int64_t now_ns) noexcept:
        cdef heap_item_t *item
        cdef entry_t **due = NULL
        cdef entry_t **grown
        cdef size_t count = 0, cap = 0, i
        while True:
            item = heap_peek(&self.inflight.due)
            if item == NULL or item.due_ns > now_ns:
                break
            if count == cap:
                cap = max(<size_t>64, 2 * cap)
                grown = <entry_t **>realloc(due, cap * sizeof(void *))
                if grown == NULL:
                    break       # the rest a moment later
                due = grown
            heap_remove(&self.inflight.due, item)
            due[count] = <entry_t *>item
            count += 1
        if count:
            qsort(due, count, sizeof(void *), by_seq)
        for i in range(count):
            self.expire(due[i])
        free(due)
        self.rearm()
        self.wake()

    cdef void rearm(self) noexcept:
        """Have `expired` called when the earliest deadline comes."""
        cdef heap_item_t *item = heap_peek(&self.inflight.due)
        if item != NULL and (self.timer.pos == 0 or item.due_ns < self.timer.due_ns):
            self.shared.turn.arm(self, item.due_ns)

    # --- the turn

    cdef void wake(self) noexcept:
        if not self.queued and not self.closed:
            self.shared.turn.add(PHASE_PUMP, self)

    cdef void records_added(self) noexcept:
        if self.waiting:
            self.wake()

    cdef void run(self) noexcept:
        if self.waiting and not self.closed and self.owner is not None:
            self.waiting = False
            self.owner.woken()

    cdef uint64_t promise(self) noexcept:
        return 0

    # --- what it knows

    cdef bint find_pending(self, uint64_t seq, pending_t *p) noexcept:
        cdef entry_t *e = self.inflight.find(seq)
        if e == NULL:
            return False
        p.consumer_seq = <uint64_t>e.timer.owner
        p.deliveries = e.deliveries
        p.sent_ns = e.mark
        p.due_ns = 0 if e.state == ENTRY_AGAIN else e.timer.due_ns
        return True

    cdef uint64_t count_pending(self) noexcept:
        return self.log.visible - self.next_seq if self.log.visible > self.next_seq else 0

    cdef uint32_t count_ack_pending(self) noexcept:
        return self.inflight.size

    @property
    def num_pending(self):
        """Messages it has still to deliver for the first time."""
        return self.count_pending()

    @property
    def num_ack_pending(self):
        """Messages in flight."""
        return self.inflight.size

    @property
    def num_redelivered(self):
        """Messages that were delivered more than once and are not settled."""
        return self.redelivered

    @property
    def delivered(self):
        """(consumer seq, seq): deliveries so far, and the highest seq among them."""
        return self.delivered_consumer_seq, self.delivered_seq

    @property
    def ack_floor(self):
        """(consumer seq, seq) below and at which all deliveries are settled."""
        return self.floor_consumer_seq, self.floor_seq

    def close(self, bint delete=False):
        """Stop, and with `delete` forget everything."""
        self.closed = True
        self.shared.turn.disarm(self)
        self.position.close()
        self.inflight.clear()
        self.owner = None

    cdef bint is_limited(self) noexcept:
        return True

    cdef void skip_to(self, uint64_t seq) noexcept:
        self.next_seq = max(self.next_seq, seq)

    cdef void missing(self, uint64_t seq) noexcept:
        self.skip_to(seq)


cdef int by_seq(const void *a, const void *b) noexcept nogil:
    cdef uint64_t first = (<entry_t **>a)[0].seq, second = (<entry_t **>b)[0].seq
    return -1 if first < second else first > second
