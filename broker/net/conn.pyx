# cython: language_level=3
"""One accepted connection.

uvloop asks for room, reads, and says how much came. Whole operations go to the session at
once; an unfinished one waits here until the rest arrives: in `tail` while it is short, in a
buffer of its own once the session knows that it is long. Output collects in `out` and is
written once per turn.
"""
from libc.string cimport memcpy, memmove

from broker.core.inbuf cimport InBuf
from broker.core.outbuf cimport Chunk, OutBuf
from broker.core.seams cimport Session, Task


cdef class Conn(Task):
    def __init__(self, door, Session session, InBuf shared, turn, pool, size_t out_limit):
        """`door.joined(conn)` and `door.left(conn)` are told of its life."""
        self.door = door
        self.session = session
        self.shared = shared
        self.out = OutBuf(self, turn, pool, out_limit)

    # --- called by the transport

    def connection_made(self, transport):
        self.transport = transport
        self.write = transport.write
        # Any byte left in the transport pauses, none resumes: what waits, waits in `out`,
        # where it is counted and where later bytes can join it.
        transport.set_write_buffer_limits(0, 0)
        self.peer = transport.get_extra_info('peername')
        self.out.turn.tick()
        self.door.joined(self)
        self.session.opened(self)

    def connection_lost(self, exc):
        self.transport = None
        self.write = None
        self.ending = True
        self.session.closing = True
        self.out.drop()
        self.big = None
        self.tail = None
        self.session.closed()
        self.door.left(self)

    def eof_received(self):
        # Answers that are still due keep the connection; once it is closing nothing does.
        return not self.session.closing and self.session.ended()

    def pause_writing(self):
        self.out.blocked = True
        self.out.blocked_ns = self.out.turn.now_ns
        self.session.blocked()

    def resume_writing(self):
        if not self.out.blocked:
            return
        self.out.blocked = False
        self.out.blocked_ns = 0
        self.run()
        if not self.out.blocked:
            self.session.writable()

    def get_buffer(self, sizehint):
        cdef InBuf room = self.shared
        if self.big is not None:
            return self.big
        room.fill = 0
        if self.tail is not None:
            room.fill = <size_t>len(self.tail)
            memcpy(room.data, <const char *>self.tail, room.fill)
        return room

    def buffer_updated(self, Py_ssize_t n):
        cdef InBuf room = self.big if self.big is not None else self.shared
        self.out.turn.tick()
        self.take_input(room.data, room.fill + <size_t>n)

    cdef void take_input(self, const char *data, size_t total) except *:
        cdef Py_ssize_t used
        if self.session.closing:
            self.big = None
            self.tail = None
            return
        used = self.session.feed(data, <Py_ssize_t>total)
        if self.session.closing or <size_t>used == total:
            self.big = None
            self.tail = None
        else:
            self.keep(data + used, total - <size_t>used)

    cdef void keep(self, const char *data, size_t rest) except *:
        """Hold on to an unfinished operation that stands in the buffer just read."""
        cdef size_t need = <size_t>self.session.need
        cdef InBuf big = self.big
        if need <= self.shared.cap // 2 and rest <= self.shared.cap // 2:
            self.tail = data[:rest]
            self.big = None
            return
        if need <= rest:
            need = 2 * rest         # not known, or all there but not wanted yet
        if big is None:
            big = InBuf(need)
            memcpy(big.data, data, rest)
        else:
            if big.data != data:
                memmove(big.data, data, rest)
            if big.cap < need:
                big = InBuf(need)
                memcpy(big.data, self.big.data, rest)
        big.fill = rest
        self.big = big
        self.tail = None

    # --- called at the end of a turn

    cdef void run(self) noexcept:
        cdef OutBuf out = self.out
        cdef Chunk chunk
        if self.transport is None:
            return
        while not out.blocked:
            chunk = out.take()
            if chunk is None:
                break
            self.write(chunk)
            out.pool.give(chunk)
        if self.ending and not out.blocked:
            self.transport.close()

    # --- called by the session (as its `link`)

    def close(self):
        """Take no more input; go away when everything put into `out` has been written."""
        self.ending = True
        self.session.closing = True
        if self.transport is not None:
            self.transport.pause_reading()
            self.out.mark()

    def abort(self):
        """Go away now; what was not yet written is lost."""
        self.ending = True
        self.session.closing = True
        if self.transport is not None:
            self.transport.abort()

    def pause(self):
        """Take no more input for now; `feed` has left off or will be called no more."""
        self.paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self):
        """Go on with the input that was left, then with what arrives."""
        cdef bytes tail = self.tail
        cdef InBuf big = self.big
        if not self.paused:
            return
        self.paused = False
        if tail is not None:
            self.tail = None
            self.take_input(<const char *>tail, <size_t>len(tail))
        elif big is not None and big.fill:
            self.take_input(big.data, big.fill)
        if not self.paused and not self.ending and self.transport is not None:
            self.transport.resume_reading()

    @property
    def pending_bytes(self):
        """Bytes queued for the peer: here and in the transport."""
        waiting = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return waiting + self.out.full_bytes + self.out.len
