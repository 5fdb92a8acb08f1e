"""How much a session may do in one turn of the loop, in whatever its input asks for."""

from __future__ import annotations

import itertools
import random
import zlib

import pytest
from support.fakes.leaf import FakeLeafs
from support.fakes.loop import FakeNats, FakePeer

from broker.protocols.nats import limits
from broker.routing.trie import work_done

Bodies = list[bytes]


def pubs(subject: bytes, bodies: Bodies, name: bytes = b"PUB") -> bytes:
    return b"".join(b"%b %b %d\r\n%b\r\n" % (name, subject, len(b), b) for b in bodies)


def numbers(count: int) -> Bodies:
    return [b"%04d" % number for number in range(count)]


def others_are_served_between(nats: FakeNats, publisher: FakePeer, sent: bytes, count: int) -> int:
    """Reads `sent`, `count` messages; returns the turns it took. A PING is answered in each."""
    other = nats.dial()
    publisher.read(sent)
    turns = 0
    while publisher.session.in_msgs < count:
        before = publisher.session.in_msgs
        assert not publisher.transport.reading
        other.read(b"PING\r\n")
        nats.loop.run_once()
        assert other.take() == b"PONG\r\n"
        assert publisher.session.in_msgs > before
        turns += 1
    nats.loop.run()
    assert publisher.transport.reading
    return turns


@pytest.mark.parametrize("queue", [b"", b"q%d "])
def test_messages_for_many_subscriptions(queue: bytes) -> None:
    nats = FakeNats()
    many, publisher = nats.dial(), nats.dial()
    names = [b"foo " + (queue % sid if queue else b"") + b"%d" % sid for sid in range(5_000)]
    many.send(b"".join(b"SUB %b\r\n" % name for name in names))
    bodies = numbers(60)
    assert others_are_served_between(nats, publisher, pubs(b"foo", bodies), 60) >= 3
    got = many.take()
    assert got.count(b"MSG foo ") == 60 * 5_000
    assert [part[:4] for part in got.split(b"MSG foo 77 4\r\n")[1:]] == bodies


def test_equal_messages_for_many_connections() -> None:
    nats = FakeNats()
    peers = [nats.dial() for _ in range(200)]
    for peer in peers:
        peer.send(b"SUB foo 1\r\n")
    bodies = numbers(3_000)
    assert others_are_served_between(nats, nats.dial(), pubs(b"foo", bodies), 3_000) >= 1
    expected = pubs(b"foo 1", bodies, b"MSG")
    assert [peer.take() == expected for peer in peers] == [True] * 200


def test_subjects_that_many_wildcards_may_match() -> None:
    nats = FakeNats()
    many, publisher = nats.dial(), nats.dial()
    paths = itertools.product((b"a", b"*"), repeat=12)
    subjects = enumerate(b".".join(path) + b".x" for path in paths)
    many.send(b"".join(b"SUB %b %d\r\n" % (subject, sid) for sid, subject in subjects))
    sent = b"".join(b"PUB %by%d 0\r\n\r\n" % (b"a." * 12, number) for number in range(30))
    assert others_are_served_between(nats, publisher, sent, 30) >= 5
    assert many.take() == b""


def test_input_that_is_decoded_first() -> None:
    """As that of WebSocket clients and with TLS."""
    nats = FakeNats()
    many, publisher = nats.dial(), nats.dial()
    many.send(b"".join(b"SUB foo %d\r\n" % sid for sid in range(5_000)))
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    sent = packer.compress(pubs(b"foo", numbers(60))) + packer.flush(zlib.Z_SYNC_FLUSH)
    publisher.conn.compress("deflate")
    assert others_are_served_between(nats, publisher, sent, 60) >= 3
    assert many.take().count(b"MSG foo ") == 60 * 5_000


def test_messages_of_a_leaf() -> None:
    hub = FakeLeafs()
    many, leaf = hub.nats.dial(), hub.join()
    many.send(b"".join(b"SUB foo %d\r\n" % sid for sid in range(5_000)))
    bodies = numbers(60)
    sent = pubs(b"foo", bodies, b"LMSG")
    assert others_are_served_between(hub.nats, leaf, sent, 60) >= 3
    got = many.take()
    assert got.count(b"MSG foo ") == 60 * 5_000
    assert [part[:4] for part in got.split(b"MSG foo 77 4\r\n")[1:]] == bodies


def test_long_subjects_of_subscriptions() -> None:
    nats = FakeNats(max_control_line=8_000)
    peer, other = nats.dial(), nats.dial()
    subs = [b"SUB %d.%bx %d\r\n" % (n, b"a." * 2_000, n) for n in range(14)]
    peer.read(b"".join(subs))
    assert 1 < peer.session.subscriptions < 14
    other.read(b"PING\r\n")
    nats.loop.run_once()
    assert other.take() == b"PONG\r\n"
    nats.loop.run()
    assert peer.session.subscriptions == 14
    peer.read(b"".join(b"UNSUB %d\r\n" % n for n in range(14)))
    assert 0 < peer.session.subscriptions < 14
    nats.loop.run()
    assert nats.router.size == 0


@pytest.mark.parametrize("again", [b"CONNECT {}\r\n", b"CONNECT {}\r\nSUB b 2\r\nPING\r\n"])
def test_a_second_connect_with_many_subscriptions(again: bytes) -> None:
    nats = FakeNats()
    peer, other = nats.dial(), nats.dial()
    peer.send(b"".join(b"SUB a.%d.b.c.d %d\r\n" % (n, n) for n in range(9_000)))
    peer.take()
    peer.read(again)
    turns, left = 0, nats.router.size
    while nats.router.size > 1:
        turns += 1
        assert not peer.transport.reading
        other.read(b"PING\r\n")
        nats.loop.run_once()
        assert other.take() == b"PONG\r\n"
        assert nats.router.size < left
        left = nats.router.size
    nats.loop.run()
    assert turns > 1
    assert peer.transport.reading
    assert nats.router.size == peer.session.subscriptions == again.count(b"SUB")
    assert peer.take() == b"PONG\r\n" * again.count(b"PING")


@pytest.mark.parametrize("number", range(2))
def test_a_connection_that_ends_during_its_second_connect(number: int) -> None:
    nats = FakeNats()
    peer = nats.dial()
    peer.send(b"".join(b"SUB a.%d.b.c.d %d\r\n" % (n, n) for n in range(9_000)))
    peer.read(b"CONNECT {}\r\nSUB b 2\r\n")
    assert nats.router.size > 0
    if number:
        peer.session.kick()
    else:
        peer.transport.closed = True
        peer.conn.connection_lost(None)
    nats.loop.run()
    assert nats.router.size == 0
    assert not nats.frontend.sessions


def talk(seed: int, connect: bytes) -> list[Bodies]:
    """What a client, a subscriber and a leaf get from random operations, in any order: that of the
    subscriptions of a subject depends on when one of them was removed."""
    hub = FakeLeafs()
    nats, rng = hub.nats, random.Random(seed)
    peer, reader, leaf = nats.dial(connect, quiet=False), nats.dial(b'{"headers":true}'), hub.join()
    reader.send(b"SUB a.* 1\r\nSUB a.1 2\r\nSUB > 3\r\n")
    leaf.send(b"LS+ a.2\r\nLS+ a.2 q 1\r\n")
    peer.take(), reader.take(), leaf.take()
    sent = b""
    for number in range(150):
        subject = b"a.%d" % rng.randrange(4)
        sent += rng.choice(
            [
                pubs(subject, [b"x%d" % number] * rng.randrange(1, 40)),
                b"HPUB %b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" % subject * rng.randrange(1, 4),
                b"PUB \t %b inbox  2 \r\nhi\r\n" % subject * rng.randrange(1, 4),
                b"SUB %b q%d %d\r\n" % (subject, number, number),
                b"sub  %b %d  \n" % (subject, number),
                b"UNSUB %d\r\n" % rng.randrange(number + 1),
                b"UNSUB %d %d\r\n" % (rng.randrange(number + 1), rng.randrange(9)),
                b"PING\r\n",
            ]
        )
    cuts = sorted(rng.randrange(len(sent)) for _ in range(20))
    for start, end in itertools.pairwise([0, *cuts, len(sent)]):
        peer.send(sent[start:end])
    assert peer.session.in_msgs == nats.frontend.traffic()[0]
    return [sorted(one.take().split(b"\r\n")) for one in (peer, reader, leaf)]


@pytest.mark.parametrize("connect", [b'{"headers":true}', b'{"verbose":false,"headers":true}'])
@pytest.mark.parametrize("seed", range(5))
def test_what_a_client_gets_does_not_depend_on_turns(
    monkeypatch: pytest.MonkeyPatch, seed: int, connect: bytes
) -> None:
    at_once = talk(seed, connect)
    for work in (1, 60, 700):
        monkeypatch.setattr(limits, "NATS_WORK", work)
        assert talk(seed, connect) == at_once


def test_the_tracer_sees_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tracer:
        def __init__(self) -> None:
            self.seen = 0

        def received(
            self, _session: object, _kind: int, words: tuple[bytes, ...], *_: object
        ) -> None:
            self.seen += words[0] == b"a"

        def sent(self, *_: object) -> None:
            pass

    monkeypatch.setattr(limits, "NATS_WORK", 10)
    nats = FakeNats()
    publisher, tracer = nats.dial(), Tracer()
    nats.dial().send(b"SUB a 1\r\n")
    nats.frontend.tracer = tracer
    publisher.send(pubs(b"a", [b"x"] * 50))
    assert publisher.session.in_msgs == tracer.seen == 50


@pytest.mark.parametrize("queue", [b"", b"q%d "])
def test_a_closing_connection_costs_its_publishers_nothing(queue: bytes) -> None:
    nats = FakeNats()
    many, other, publisher = nats.dial(), nats.dial(), nats.dial()
    count = 2 * limits.NATS_LEFT_OUT
    names = [(queue % sid if queue else b"") + b"%d" % sid for sid in range(count)]
    many.send(b"".join(b"SUB foo %b\r\n" % name for name in names))
    other.send(b"SUB foo q 1\r\nSUB foo 2\r\n")
    many.session.kick()
    for number in range(3):
        before = work_done()
        publisher.read(pubs(b"foo", [b"x"]))
        if number:
            assert work_done() - before < 100
    assert nats.router.size == count + 2
    nats.loop.run()
    assert nats.router.size == 2
    publisher.send(pubs(b"foo", [b"x"]))
    assert other.take().count(b"MSG foo ") == 4 * 2
    assert b"MSG" not in many.take()


def test_long_subjects_of_a_closed_connection_go_in_slices() -> None:
    nats = FakeNats(max_control_line=8_000)
    peer = nats.dial()
    tokens, count = 1_024, 9
    for sid in range(count):
        peer.send(b"SUB %b%d %d\r\n" % (b"a." * (tokens - 1), sid, sid))
    peer.transport.closed = True
    peer.conn.connection_lost(None)
    assert nats.router.size == count - limits.NATS_TEARDOWN // tokens
    nats.loop.run()
    assert nats.router.size == 0
