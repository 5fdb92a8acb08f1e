"""One connection is read for a bounded part of a turn, however much its peer sends."""

from __future__ import annotations

from support.fakes.loop import FakeNats, FakePeer
from support.fakes.nsq import FakeNsq, pub

from broker.net import limits
from broker.protocols.nsq.limits import NSQ_READ_BYTES_MAX

BODY = b"x" * 1000
MESSAGE = b"PUB a 1000\r\n%s\r\n" % BODY


def pair() -> tuple[FakeNats, FakePeer, FakePeer]:
    nats = FakeNats()
    subscriber = nats.dial()
    subscriber.send(b"SUB a 1\r\n")
    return nats, nats.dial(), subscriber


def test_reading_pauses_after_its_share_of_a_turn() -> None:
    nats, publisher, subscriber = pair()
    count = limits.READ_BYTES_MAX // len(MESSAGE)
    publisher.read(MESSAGE * count)
    assert publisher.transport.reading
    publisher.read(MESSAGE)
    assert not publisher.transport.reading
    nats.loop.run()
    assert publisher.transport.reading
    assert subscriber.take().count(BODY) == count + 1


def test_each_turn_has_its_share() -> None:
    nats, publisher, subscriber = pair()
    count = limits.READ_BYTES_MAX // len(MESSAGE)
    for _ in range(3):
        publisher.read(MESSAGE * count)
        assert publisher.transport.reading
        nats.loop.run()
    assert subscriber.take().count(BODY) == 3 * count


def test_a_long_message_counts_although_it_has_a_buffer_of_its_own() -> None:
    nats = FakeNats(max_payload=4 * limits.READ_BYTES_MAX)
    publisher = nats.dial()
    size = 2 * limits.READ_BYTES_MAX
    publisher.read(b"PUB a %d\r\n%s\r\nPING\r\n" % (size, b"x" * size))
    assert not publisher.transport.reading
    nats.loop.run()
    assert publisher.transport.reading
    assert publisher.take() == b"PONG\r\n"


def test_a_session_that_pauses_meanwhile_stays_paused() -> None:
    nats, publisher, _ = pair()
    count = limits.READ_BYTES_MAX // len(MESSAGE) + 1
    publisher.read(MESSAGE * count)
    publisher.conn.pause()
    nats.loop.run()
    assert not publisher.transport.reading
    publisher.conn.resume()
    assert publisher.transport.reading


def test_a_connection_that_ends_meanwhile_is_left_alone() -> None:
    nats, publisher, _ = pair()
    publisher.read(MESSAGE * (limits.READ_BYTES_MAX // len(MESSAGE) + 1))
    publisher.leave()
    nats.loop.run()
    assert publisher.conn not in nats.listener.conns


def test_a_protocol_may_have_a_smaller_share() -> None:
    assert NSQ_READ_BYTES_MAX < limits.READ_BYTES_MAX
    nsq = FakeNsq()
    publisher = nsq.dial()
    message = pub(b"a", BODY)
    publisher.read(message * (NSQ_READ_BYTES_MAX // len(message)))
    assert publisher.transport.reading
    publisher.read(message)
    assert not publisher.transport.reading
    nsq.loop.run()
    assert publisher.transport.reading
    nsq.close()
