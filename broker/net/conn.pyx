# cython: language_level=3
"""One accepted connection.

uvloop requests a buffer, reads, and reports the number of bytes. Complete operations are passed to
the session at once; an incomplete one waits here for its rest: in `tail` while it is short, in a
separate buffer once the session knows that it is long. Output is collected in `out` and written
at the end of a turn.

    transport -> tls -> codec -> session        filters, if a session has requested them
    transport <- tls <- codec <- out
"""
import fcntl
import logging
import sys
import termios

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove

from broker.runtime.buffers cimport Chunk, InBuf, OutBuf, out_waiting
from broker.runtime.interfaces cimport Session, Task
from broker.runtime.sender cimport SendOwner, Sender
from broker.net.filters cimport Filter, Tls

from broker.net import errors, limits
from broker.net.filters import Deflate, FilterError, Snappy
from broker.net.tls import common_name
from broker.net.openssl import cipher_name, shown_behind, version_name

cdef extern from '<sys/socket.h>':
    enum: MSG_DONTWAIT
    enum: MSG_NOSIGNAL
    Py_ssize_t send(int fd, const void *data, size_t n, int flags)

LOG = logging.getLogger('broker.net')

cdef size_t READ_BYTES_MAX = limits.READ_BYTES_MAX
cdef size_t SEND_BEHIND_MAX = limits.SEND_BEHIND_MAX
cdef size_t SEND_WAIT_MAX = limits.SEND_WAIT_MAX

# Owner of the output of an ended connection, which is never written. If the connection remained the
# owner, both would be in a cycle, and garbage collections are rare.
cdef Task NO_OWNER = Task()
NO_OWNER.queued = True


cdef class Conn(SendOwner):
    def __init__(self, listener, Session session, InBuf shared, turn, pool, size_t out_limit):
        """Calls `listener.connection_opened(conn)` at its start and
        `listener.connection_closed(conn)` at its end."""
        self.listener = listener
        self.session = session
        self.shared = shared
        self.out = OutBuf(self, turn, pool, out_limit)
        self.fd = -1

    # --- called by the transport

    def connection_made(self, transport):
        self.transport = transport
        self.write = transport.write
        # Any byte in the transport pauses the output, and none resumes it: pending output is in
        # `out`, where it is counted and sent together with later bytes. With TLS of the loop
        # itself, a limit counts as reached when it is equal: 0 would pause for ever.
        plain = transport.get_extra_info('ssl_object') is None
        transport.set_write_buffer_limits(0 if plain else 1, 0)
        if plain:
            handle = transport.get_extra_info('socket')
            self.fd = -1 if handle is None else handle.fileno()
        self.peer = transport.get_extra_info('peername')
        self.out.turn.tick()
        self.listener.connection_opened(self)
        self.session.opened(self)

    def connection_lost(self, exc):
        self.end_send()
        self.fd = -1        # the transport closes the socket afterwards
        self.transport = None
        self.write = None
        self.ending = True
        self.failure = exc
        self.session.end_input()
        self.out.turn.disarm(self)
        self.out.drop()
        self.big = None
        self.tail = None
        if self.prefix is not None:
            self.prefix.closed()
            self.prefix = None
        self.session.closed()
        self.listener.connection_closed(self)
        self.out.owner = NO_OWNER

    def eof_received(self):
        # Pending answers keep the connection open, but not when it is closing.
        if not self.session.closing and self.session.ended():
            return True
        self.out.write_now()    # the connection ends before a thread could do it
        return False

    def pause_writing(self):
        self.out.blocked = True
        self.out.blocked_ns = self.out.turn.now_ns
        self.session.blocked()

    def resume_writing(self):
        if not self.out.blocked:
            return
        self.out.blocked = False
        self.out.blocked_ns = 0
        self.out.write_now()
        if not self.out.blocked:
            self.session.writable()

    def get_buffer(self, sizehint):
        cdef InBuf room = self.shared
        if self.big is not None and not self.filtered:
            return self.big
        room.fill = 0
        if self.tail is not None and not self.filtered:
            room.fill = <size_t>len(self.tail)
            memcpy(room.data, <const char *>self.tail, room.fill)
        return room

    def buffer_updated(self, Py_ssize_t n):
        cdef InBuf room = self.shared
        if self.big is not None and not self.filtered:
            room = self.big
        self.out.turn.tick()
        if self.prefix is not None:
            self.prefix.received(self, self.shared.data[:n])
        else:
            self.received(room.data, <size_t>n, room.fill)
        self.count_input(<size_t>n)
        if self.out.turn.early is not None:
            self.out.turn.start_early()

    cdef void received(self, const char *data, size_t n, size_t kept) except *:
        """Process n new bytes, which follow `kept` ones that the session has left."""
        if self.filtered:
            self.take_encoded(data, n)
        elif self.peeking:
            self.peeked(data, n)
        else:
            self.take_input(data, kept + n)

    cdef void count_input(self, size_t n) except *:
        """Stop reading when this connection has had its share of a turn: otherwise the transport
        would read as long as the peer sends."""
        cdef size_t share = self.session.read_bytes_max or READ_BYTES_MAX
        if self.read_turn != self.out.turn.number:
            self.read_turn = self.out.turn.number
            self.read_bytes = 0
        self.read_bytes += n
        if self.read_bytes < share or self.is_deferred or self.paused or self.ending or (
                self.handshaking or self.transport is None):
            return
        self.read_bytes = 0
        self.is_deferred = True
        self.transport.pause_reading()
        self.listener.runtime.loop.call_soon(self.read_deferred)

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
            self.keep_unfinished(data + used, total - <size_t>used)

    cdef void keep_unfinished(self, const char *data, size_t rest) except *:
        """Keep an incomplete operation of the buffer that was just read."""
        cdef size_t need = <size_t>self.session.need
        cdef InBuf big = self.big
        if need <= self.shared.cap // 2 and rest <= self.shared.cap // 2:
            self.tail = data[:rest]
            self.big = None
            return
        if need <= rest:
            need = 2 * rest         # unknown, or complete and paused
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
        cdef Sender sender = out.turn.sender
        cdef Chunk chunk
        cdef bint behind = self.sending is not None
        if self.transport is None or self.handshaking or (behind and not self.may_write()):
            return
        if self.filtered:
            try:
                self.write_encoded()
                if self.codec is not None and not out.blocked:
                    self.send_inside_tls(self.codec.pending())  # writing was paused meanwhile
            except Exception as problem:
                LOG.error('connection dropped after an internal error', exc_info=problem)
                self.abort()
                return
        while not out.blocked:
            if sender is not None:
                sender.make_room()      # before the chunk is taken: it may run this connection
            chunk = out.take()
            if chunk is None:
                break
            if sender is not None and self.fd >= 0 and not out.at_once and (
                    out.full_bytes < SEND_BEHIND_MAX) and sender.offer(
                    self, self.fd, chunk.data, chunk.len):
                self.sending = chunk
                return
            self.send_or_write(chunk, chunk.data, chunk.len)
            out.pool.put_back(chunk)
        if self.ending and not out.blocked:
            if self.codec is not None:
                self.send_inside_tls(self.codec.finish())
            if self.tls is not None:
                self.send(self.tls.finish())
            self.transport.close()
        elif behind and not out.blocked:
            self.notify_waiters()

    # --- output in the loop's Sender

    cdef bint may_write(self):
        """Whether further output may be written: the thread has sent its output, or was too late
        and it was withdrawn. In that case this sends the rest."""
        cdef Sender sender = self.out.turn.sender
        if self.out.at_once or self.out.full_bytes > SEND_WAIT_MAX:
            sender.finish(self)
        elif not sender.has_ended(self) and (
                self.out.full_bytes < SEND_BEHIND_MAX or not sender.withdraw(self)):
            return False
        self.send_remainder()
        return True

    cdef void send_remainder(self):
        """Send what the thread has not sent."""
        cdef Chunk chunk = self.sending
        if chunk is None:
            return
        self.sending = None
        if self.job.sent < 0:
            self.send_or_write(chunk, chunk.data, chunk.len)
        elif self.job.sent < <Py_ssize_t>chunk.len:
            self.write(memoryview(chunk)[self.job.sent:])
        self.out.pool.put_back(chunk)

    cdef void sent(self) noexcept:
        self.send_remainder()
        self.run()
        if self.sending is None and not self.out.blocked:
            self.notify_waiters()

    cdef void notify_waiters(self):
        """Sessions may pause until the output is written, which was blocked until now. They
        continue in a later step of the loop, because this one may be in the middle of a
        delivery."""
        if self.session.waiters is not None:
            self.listener.runtime.loop.call_soon(self.written)

    def written(self):
        """The output can be written: continue the sessions that wait for it."""
        if self.transport is not None and not (
                self.ending or self.out.blocked or self.sending is not None):
            self.session.writable()

    cdef void end_send(self):
        """The connection ends: the thread must not use the descriptor any more."""
        cdef Sender sender
        if self.sending is not None:
            sender = self.out.turn.sender
            sender.finish(self)
            self.sending = None

    cdef void send_or_write(self, object buffer, const char *data, size_t n):
        """Send the n bytes at `data`, which are all of `buffer`: directly to the socket as far as
        it accepts them; the transport sends the rest and reports errors.

        Only while nothing waits in the transport: a single byte in it blocks the output.
        """
        cdef Py_ssize_t sent = -1
        if self.fd >= 0:
            sent = send(self.fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL)
            while sent < 0 and errno == EINTR:
                sent = send(self.fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == <Py_ssize_t>n:
                return
        self.write(memoryview(buffer)[sent:] if sent > 0 else buffer)

    # --- a prefix of the connection, before the protocol begins

    def expect_prefix(self, prefix):
        """Pass the first bytes to `prefix`: its received(conn, bytes) is called until it calls
        end_prefix. Its closed() is called if the connection ends before."""
        self.prefix = prefix

    def end_prefix(self, bytes rest, peer=None):
        """The session receives the input from here on, beginning with `rest`. `peer`: its (host,
        port), if that is not the other end of the connection."""
        self.prefix = None
        if peer is not None:
            self.peer = peer
        self.session.set_peer(self.peer)
        if rest and not self.ending:
            self.received(rest, <size_t>len(rest), 0)

    # --- called by the session (as its `link`)

    def close(self):
        """Read no more input; close when everything in `out` is written."""
        if self.handshaking:
            self.abort()        # nothing can be sent during a handshake
            return
        self.ending = True
        self.session.end_input()
        if self.transport is not None:
            self.transport.pause_reading()
            self.out.mark()

    def abort(self):
        """Close now; unwritten output is lost."""
        self.end_send()
        self.fd = -1
        self.ending = True
        self.session.end_input()
        if self.transport is not None:
            self.transport.abort()

    def pause(self):
        """Read no more input for now; `feed` has stopped or is not called again."""
        self.paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self):
        """Continue with the unprocessed input, then with new input."""
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
        if self.filtered and not self.handshaking:
            self.decode()
        if self.is_deferred:
            return
        if not self.paused and not self.ending and self.transport is not None:
            self.transport.resume_reading()

    def peek(self, int64_t timeout_ns):
        """Call the session's `begun` with the first input, before it is fed."""
        self.peeking = True
        self.out.turn.arm(self, self.out.turn.now_ns + timeout_ns)

    def secure(self, context, int64_t timeout_ns, hostname=None):
        """Start TLS; earlier output in `out` is sent unencrypted.

        As the server, or as the client of `hostname`. At the end the session's `secured` is called;
        until then it receives no input, and its output waits.
        """
        self.out.write_now()
        if self.ending:
            return
        self.tls = Tls(context, server_side=hostname is None, server_hostname=hostname)
        self.filtered = self.handshaking = True
        self.tail = None
        self.big = None
        self.out.turn.arm(self, self.out.turn.now_ns + timeout_ns)
        if hostname is not None:
            self.continue_tls()

    def compress(self, str kind, int level=limits.DEFLATE_LEVEL):
        """Deflate or snappy from here on, in both directions."""
        self.encode_with(Deflate(level) if kind == 'deflate' else Snappy())

    def encode_with(self, Filter codec):
        """Use a filter from here on, in both directions."""
        self.out.write_now()
        if out_waiting(self.out):
            self.abort()    # only a greeting is pending, and no peer reads it
            return
        self.codec = codec
        self.filtered = True
        self.tail = None
        self.big = None

    def hand_over(self, Session session, Filter codec, bytes early=b''):
        """Hand the connection over to another session, with a filter for later output.

        `early`: input that the former session has received and that is meant for the new one.
        """
        self.out.write_now()
        if self.ending or out_waiting(self.out):
            self.abort()    # so little output fits into any new socket: the peer has disconnected
            return
        self.session = session
        self.codec = codec
        self.filtered = True
        self.tail = None
        self.big = None
        session.opened(self)
        if early and not session.closing:
            codec.receive(early, <size_t>len(early))
            self.decode()

    @property
    def unsent(self):
        """Bytes that the peer has not received, in the transport and in the kernel."""
        if self.transport is None:
            return 0
        waiting = self.transport.get_write_buffer_size()
        handle = self.transport.get_extra_info('socket')
        if handle is None:
            return waiting
        try:
            return waiting + int.from_bytes(
                fcntl.ioctl(handle.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except OSError:
            return waiting

    @property
    def pending_bytes(self):
        """Bytes queued for the peer: here and in the transport."""
        waiting = 0 if self.transport is None else self.transport.get_write_buffer_size()
        if self.sending is not None:
            waiting += self.job.len
        return waiting + self.out.full_bytes + self.out.len

    @property
    def client_name(self):
        """The common name in the peer's certificate, or nothing."""
        return '' if self.tls is None else common_name(self.tls.link)

    @property
    def certificate(self):
        """The peer's certificate as DER; None: it has none."""
        return None if self.tls is None else self.tls.link.getpeercert(True)

    @property
    def chain(self):
        """The certificates that followed it."""
        return () if self.tls is None else shown_behind(self.tls.link)

    @property
    def security(self):
        """(cipher, version, protocol) of TLS with Go's names; None: no TLS."""
        if self.tls is None:
            return None
        link = self.tls.link
        return cipher_name(link), version_name(link), link.selected_alpn_protocol() or ''

    # --- how input begins

    cdef void peeked(self, const char *data, size_t n) except *:
        """Pass the first input to the session, which decides how to continue."""
        self.peeking = False
        self.out.turn.disarm(self)
        if not self.session.closing:
            self.session.begun(<unsigned char>data[0])
        if self.filtered:
            self.take_encoded(data, n)
        else:
            self.take_input(data, n)

    # --- filters

    cdef void take_encoded(self, const char *data, size_t n) except *:
        cdef Filter first = self.tls if self.tls is not None else self.codec
        if self.session.closing and not self.handshaking:
            return
        try:
            first.receive(data, n)
            if not self.handshaking:
                self.decode()
            elif not self.handshake_queued:
                self.handshake_queued = True
                self.transport.pause_reading()
                self.listener.runtime.handshakes.add(self.continue_handshake)
        except FilterError as problem:
            self.close_invalid(str(problem))

    def continue_handshake(self):
        """Do the next step of the handshake, with the received bytes."""
        self.handshake_queued = False
        if self.transport is None:
            return
        self.out.turn.tick()
        try:
            if self.handshaking:
                self.continue_tls()
        except Exception as problem:
            LOG.error('connection dropped after an internal error', exc_info=problem)
            self.abort()
        if self.transport is not None and not (self.paused or self.is_deferred or self.ending):
            self.transport.resume_reading()

    cdef void continue_tls(self) except *:
        """Continue or end the handshake."""
        cdef str cause = None
        try:
            if not self.tls.handshake():
                self.send(self.tls.pending())
                return
        except FilterError as problem:
            cause = str(problem)
        if cause is None or self.tls.looks_like_tls:
            self.send(self.tls.pending())       # input that is not TLS gets no alert
        self.handshake_ended(cause)
        if cause is None and not self.ending:
            self.decode()       # input may have arrived together with the end of the handshake

    def handshake_ended(self, cause):
        """The handshake has ended; `cause`: why it failed, or None."""
        self.out.turn.disarm(self)
        self.handshaking = False
        if cause is not None:
            self.tls = None
            self.filtered = self.codec is not None
        self.session.secured(cause)
        self.out.mark()

    cdef void expired(self, int64_t now_ns) noexcept:
        if self.transport is None:
            return
        if self.handshaking:
            self.handshake_ended(errors.TLS_TIMED_OUT)
        elif self.peeking:
            self.peeking = False
            if not self.session.closing:
                self.session.begun(-1)

    cdef void decode(self) except *:
        """Feed the received bytes, a limited part of them per turn."""
        try:
            self.decode_some()
        except FilterError as problem:
            self.close_invalid(str(problem))

    cdef void decode_some(self) except *:
        cdef InBuf room, plain = self.listener.runtime.plain
        cdef Py_ssize_t got
        cdef size_t decoded_bytes = 0
        while not self.session.closing and not self.paused:
            if decoded_bytes > limits.DECODE_BYTES_MAX:
                self.is_deferred = True
                self.transport.pause_reading()
                self.listener.runtime.loop.call_soon(self.read_deferred)
                return
            room = self.big if self.big is not None else plain
            if self.big is None:
                room.fill = 0
                if self.tail is not None:
                    room.fill = <size_t>len(self.tail)
                    memcpy(room.data, <const char *>self.tail, room.fill)
            got = self.decoded(room.data + room.fill, room.cap - room.fill)
            if got == 0 and self.codec is not None and self.codec.busy:
                decoded_bytes = <size_t>limits.DECODE_BYTES_MAX + 1
                continue
            if got == 0:
                break
            decoded_bytes += <size_t>got + <size_t>limits.DECODE_PIECE
            self.take_input(room.data, room.fill + <size_t>got)
        if self.codec is not None and not self.out.blocked:
            self.send_inside_tls(self.codec.pending())
        if self.tls is not None:
            self.send(self.tls.pending())
        if ((self.tls is not None and self.tls.ended)
                or (self.codec is not None and self.codec.ended)) and (
                not self.ending and not self.paused):
            if not self.eof_received():
                self.close()

    def read_deferred(self):
        """Feed the next part of the input, and read more."""
        self.is_deferred = False
        if self.transport is None or self.session.closing:
            return
        self.out.turn.tick()
        if self.filtered and not self.handshaking:
            self.decode()
        if self.transport is not None and not (
                self.paused or self.is_deferred or self.ending or self.handshake_queued):
            self.transport.resume_reading()

    cdef Py_ssize_t decoded(self, char *room, size_t n) except -1:
        cdef Py_ssize_t got
        cdef bytearray scratch
        if self.codec is None:
            return self.tls.read(room, n)
        got = self.codec.read(room, n)
        if got or self.tls is None or self.codec.busy:
            return got
        scratch = bytearray(limits.TLS_RECORD_BYTES)
        while got == 0 and not self.codec.busy:
            got = self.tls.read(scratch, <size_t>len(scratch))
            if got == 0:
                return 0
            self.codec.receive(scratch, <size_t>got)
            got = self.codec.read(room, n)
        return got

    cdef void close_invalid(self, str reason) except *:
        """The peer's bytes are invalid: close, because later ones cannot be decoded either."""
        LOG.info('client %s dropped: %s', self.peer, reason)
        cdef bytes last = self.codec.pending() if self.codec is not None else b''
        self.send_inside_tls(last)
        if self.tls is not None:
            self.send(self.tls.pending())       # the alert with the reason
        self.abort() if self.tls is None and not last else self.close()

    cdef void send_inside_tls(self, bytes data) except *:
        """Send the output of a filter inside TLS."""
        if data:
            self.send(self.tls.send(data) if self.tls is not None else data)

    cdef void send(self, bytes data):
        if data and self.transport is not None:
            if self.out.blocked:
                self.write(data)
            else:
                self.send_or_write(data, <const char *>data, <size_t>len(data))

    cdef void write_encoded(self) except *:
        """Pass the bytes in `out` through the filters."""
        cdef OutBuf out = self.out
        cdef Chunk chunk
        cdef bytes data
        cdef list parts = []
        cdef size_t taken = 0
        while not out.blocked:
            chunk = out.take()
            if chunk is None and not taken:
                return
            if chunk is not None:
                taken += chunk.len
                data = self.codec.send(chunk) if self.codec is not None else None
                if self.codec is None:
                    self.send(self.tls.send(chunk))
                elif data:
                    parts.append(data)
                out.pool.put_back(chunk)
                if taken < <size_t>limits.ENCODE_BYTES_MAX:
                    continue
            if self.codec is not None:
                parts.append(self.codec.flush())
                data = b''.join(parts)
                parts = []
                self.send(self.tls.send(data) if self.tls is not None else data)
            taken = 0
