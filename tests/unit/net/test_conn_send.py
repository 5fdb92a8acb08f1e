"""Connections whose long output is sent by a thread: order, limits, and every way to end."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients.peer import nats_peer
from support.fakes.loop import FakeNats, FakePeer
from support.fakes.sends import WAIT_S, SenderLoop, never_run
from support.live.nats import LiveNats

from broker.base.units import KIB, MIB
from broker.net import limits, listener

BODY = os.urandom(10_000)


class World:
    """A subscriber with a real socket, a publisher, and a thread that does not begin with
    anything."""

    def __init__(self, **settings: int | str) -> None:
        self.loop = SenderLoop()
        self.nats = FakeNats(**settings)
        self.nats.loop.turn.sender = self.loop.sender
        self.sock, self.far = socket.socketpair()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        self.far.settimeout(WAIT_S)
        self.subscriber = FakePeer(self.nats.listener, self.sock)
        self.subscriber.send(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
        self.until(b"PONG\r\n")
        self.publisher = self.nats.dial()
        self.published = 0

    def publish(self, nbytes: int) -> None:
        """Messages of so many bytes, in one turn that does not end the last one's send."""
        count = nbytes // len(BODY)
        for number in range(self.published, self.published + count):
            self.publisher.read(b"PUB a %d\r\n%08d%s\r\n" % (len(BODY) + 8, number, BODY))
        self.nats.loop.run()
        self.published += count

    def under_way(self) -> int:
        sender = self.loop.sender
        return sender.offered - sender.withdrawn

    def rest(self) -> None:
        """The loop has nothing else to do."""
        self.loop.has_input(False)
        self.publisher.send(b"PING\r\n")

    def read(self) -> bytes:
        found = b""
        self.far.setblocking(False)
        while True:
            try:
                piece = self.far.recv(MIB)
            except BlockingIOError:
                return found
            if not piece:
                return found
            found += piece

    def until(self, mark: bytes) -> None:
        found = b""
        while not found.endswith(mark):
            found += self.far.recv(MIB)

    def expected(self) -> bytes:
        return b"".join(
            b"MSG a 1 %d\r\n%08d%s\r\n" % (len(BODY) + 8, number, BODY)
            for number in range(self.published)
        )

    def close(self) -> None:
        self.loop.close()
        self.sock.close()
        self.far.close()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    never_run(monkeypatch)
    made: list[World] = []

    def one(**settings: int | str) -> World:
        made.append(World(**settings))
        return made[-1]

    yield one
    for world in made:
        world.close()


def test_output_that_follows_waits_for_its_turn(make: Callable[..., World]) -> None:
    world = make()
    world.publish(70 * KIB)
    assert world.under_way() == 1
    assert world.read() == b""
    world.publish(70 * KIB)
    assert world.read() == b""
    assert world.subscriber.conn.pending_bytes == len(world.expected())
    world.rest()
    assert world.read() == world.expected()
    assert world.subscriber.conn.pending_bytes == 0


def test_a_thread_that_is_late_gets_its_send_taken_back(make: Callable[..., World]) -> None:
    world = make()
    world.publish(70 * KIB)
    world.publish(limits.SEND_BEHIND_MAX + 2 * limits.CHUNK_LARGE)
    assert world.loop.sender.withdrawn >= 1
    world.rest()
    assert world.read() == world.expected()


def test_the_limit_of_output_counts_only_what_no_socket_takes(make: Callable[..., World]) -> None:
    world = make(max_pending=200 * KIB)
    world.publish(70 * KIB)
    assert world.under_way() == 1
    world.publish(1 * MIB)
    world.rest()
    assert not world.subscriber.closed
    assert world.read() == world.expected()


@pytest.mark.parametrize("end", ["leave", "abort"])
def test_a_connection_that_ends_takes_its_send_back(make: Callable[..., World], end: str) -> None:
    world = make()
    world.publish(70 * KIB)
    assert world.under_way() == 1
    world.subscriber.leave() if end == "leave" else world.subscriber.conn.abort()
    assert world.under_way() == 0  # the descriptor may be another connection's from here on
    world.nats.loop.run()
    world.rest()
    assert world.read() == b""


def test_a_connection_closes_after_its_send(make: Callable[..., World]) -> None:
    world = make()
    world.publish(70 * KIB)
    world.subscriber.conn.close()
    world.nats.loop.run()
    assert not world.subscriber.closed
    world.rest()
    assert world.subscriber.closed
    assert world.read() == world.expected()


def test_a_peer_that_sends_no_more_gets_its_output(make: Callable[..., World]) -> None:
    world = make()
    messages = b"".join(b"PUB a %d\r\n%s\r\n" % (len(BODY), BODY) for _ in range(8))
    world.subscriber.read(messages)
    assert not world.subscriber.conn.eof_received()
    world.subscriber.leave()  # as a transport does, before any thread could send
    assert world.read().count(BODY) == 8


def test_output_that_waits_stays_small(make: Callable[..., World]) -> None:
    """However late the thread is, and although the socket takes everything."""
    world = make()
    most = 0
    for _ in range(100):
        world.publish(150 * KIB)
        most = max(most, world.subscriber.conn.pending_bytes)
        world.read()
    assert most < limits.SEND_BEHIND_MAX + 3 * limits.CHUNK_LARGE


@pytest.mark.parametrize("policy", ["drop", "pause"])
def test_nobody_waits_for_output_that_is_written(make: Callable[..., World], policy: str) -> None:
    """A publisher with so much output behind a send that it would pause, in the same read."""
    world = make(max_pending=150 * KIB, slow_consumer=policy)
    world.subscriber.send(b"".join(b"SUB b %d\r\n" % sid for sid in range(2, 8)))
    message = b"PUB b %d\r\n%s\r\n" % (len(BODY), BODY)
    world.publisher.send(2 * message)
    assert world.under_way() == 1
    world.publisher.send(5 * message)  # six times as much output, of one read
    assert world.publisher.transport.reading
    world.rest()
    assert world.read().count(BODY) == 6 * 7


def test_publishers_go_on_when_the_output_is_written(make: Callable[..., World]) -> None:
    """And not in the midst of another delivery: in a step of their own."""
    world = make(max_pending=200 * KIB)
    world.publish(70 * KIB)
    world.publish(170 * KIB)  # above the part of max_pending at which publishers pause
    assert world.under_way() == 1
    assert not world.publisher.transport.reading
    world.loop.has_input(False)
    world.nats.dial().send(b"PING\r\n")
    assert world.publisher.transport.reading
    assert world.read() == world.expected()


def test_bytes_before_a_filter_are_written_before_it(make: Callable[..., World]) -> None:
    world = make()
    world.publish(70 * KIB)
    assert world.under_way() == 1
    world.subscriber.conn.compress("snappy")
    assert world.under_way() == 0
    assert world.read() == world.expected()


# --- with the thread


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveNats]:
    monkeypatch.setattr(listener, "usable_processors", lambda: 2.0)
    with LiveNats() as server:
        yield server


def block(first: int, count: int) -> bytes:
    return b"".join(
        b"PUB a %d\r\n%08d%s\r\n" % (8 + size, number, BODY[:size])
        for number in range(first, first + count)
        for size in (number * 7919 % 2000,)
    )


def receive(server: LiveNats, count: int, ready: threading.Barrier) -> None:
    with nats_peer(server.nats) as peer:
        peer.send(b"SUB a 1\r\n")
        peer.ping()
        ready.wait(WAIT_S)
        for number in range(count):
            size = number * 7919 % 2000
            peer.expect(b"MSG a 1 %d\r\n%08d%s\r\n" % (8 + size, number, BODY[:size]))


def test_each_subscriber_gets_every_byte_in_order(live: LiveNats) -> None:
    count = 20_000
    ready = threading.Barrier(5)
    with ThreadPoolExecutor(4) as threads, nats_peer(live.nats) as publisher:
        received = [threads.submit(receive, live, count, ready) for _ in range(4)]
        ready.wait(WAIT_S)
        for first in range(0, count, 1_000):
            publisher.send(block(first, 1_000))
        publisher.ping()
        for each in received:
            each.result()
    sender = live.ask(lambda server: server.runtime.turn.sender)
    assert sender is not None
    assert sender.offered > sender.withdrawn


def test_connections_that_end_in_the_midst_harm_no_other(live: LiveNats) -> None:
    """Their descriptors become those of later connections at once."""
    stop = threading.Event()

    def publish() -> None:
        data = block(0, 1_000)
        with nats_peer(live.nats) as publisher:
            while not stop.is_set():
                publisher.send(data)
                publisher.ping()

    with ThreadPoolExecutor(1) as threads:
        publishing = threads.submit(publish)
        try:
            for _ in range(60):
                with nats_peer(live.nats) as peer:
                    peer.send(b"SUB a 1\r\n")
                    line = peer.read_line()
                    assert line.startswith(b"MSG a 1 ")
                    peer.read_exact(int(line.split()[-1]))
        finally:
            stop.set()
        publishing.result()
