"""Backpressure: publishers ahead of the disk, clients who do not read, clients who read slowly."""

from __future__ import annotations

import pytest
from support.fakes.nsq import OK, FakeNsq, MakeNsq, message_id, mpub, not_in_flight, pub, shown

from broker.base import units
from broker.protocols.nsq import limits

SECOND = units.SECOND


def test_too_many_unanswered_publishes_stop_the_reading(
    make_nsq: MakeNsq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NSQ_PENDING_MAX", 10)
    nsq = make_nsq()
    peer = nsq.dial()
    peer.read(pub(b"t", b"a") * 25)
    assert not peer.transport.reading
    assert nsq.engine.log("t").next_seq == 11
    nsq.loop.run()
    assert peer.frames() == [OK] * 25
    assert peer.transport.reading


def test_a_consumer_that_does_not_read_gets_no_more_until_it_does(nsq: FakeNsq) -> None:
    consumer, publisher = nsq.consumer(b"t", 100), nsq.dial()
    consumer.transport.room = 100
    for _ in range(3):
        publisher.send(mpub(b"t", *[b"x" * 5_000] * 20))
    assert len(consumer.transport.taken) == 100
    held = nsq.engine.log("t").cursors["c"].in_flight_count
    assert held < 60
    consumer.transport.read_all()
    nsq.loop.run()
    messages = [shown(f) for f in consumer.frames()]
    assert [m[:2] for m in messages] == [(seq, 1) for seq in range(1, 61)]
    assert {len(m[2]) for m in messages} == {5_000}


def test_a_client_that_does_not_take_its_answers_is_not_read(nsq: FakeNsq) -> None:
    peer = nsq.consumer(b"t", 0)
    peer.transport.room = 0
    fin = b"FIN %s\n" % message_id(5)
    peer.send(fin)
    peer.send(fin * 3)
    assert not peer.transport.reading
    assert nsq.dial().ask(pub(b"t", b"a")) == [OK]
    peer.transport.read_all()
    nsq.loop.run()
    assert peer.frames() == [not_in_flight("FIN", 5)] * 4
    assert peer.transport.reading


def test_a_consumer_that_never_reads_is_dropped(nsq: FakeNsq) -> None:
    peer = nsq.consumer(b"t", 10, {"heartbeat_interval": 1000})
    peer.transport.room = 0
    assert nsq.dial().ask(pub(b"t", b"a")) == [OK]
    nsq.loop.advance(3 * SECOND)
    assert peer.closed
    assert nsq.frontend.slow_consumers == 1
    other = nsq.consumer(b"t", 1)
    assert [shown(f) for f in other.frames()] == [(1, 2, b"a")]


def test_a_consumer_that_reads_slowly_stays(nsq: FakeNsq) -> None:
    peer = nsq.consumer(b"t", 10, {"heartbeat_interval": 1000})
    peer.transport.room = 0
    assert nsq.dial().ask(pub(b"t", b"a" * 500)) == [OK]
    for _ in range(10):
        del peer.transport.kept[:20]  # the kernel passed on a little
        nsq.loop.advance(SECOND)
        peer.send(b"NOP\n")
        assert not peer.closed
    nsq.loop.advance(SECOND)
    nsq.loop.advance(SECOND)
    assert peer.closed
