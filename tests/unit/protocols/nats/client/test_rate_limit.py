"""How fast somebody may publish, and what becomes of subscribers that are too slow."""

from __future__ import annotations

from support.fakes.loop import FakeNats, FakePeer
from support.native.nats import take

from broker.base import units
from broker.protocols.nats import limits
from broker.protocols.nats.auth.authenticator import Identity, Login
from broker.protocols.nats.client.handshake import NoLogin
from broker.protocols.nats.client.rate_limit import Bucket
from broker.protocols.nats.settings import RateLimit

SECOND = units.SECOND


def pub(body: bytes, times: int = 1) -> bytes:
    return b"PUB a %d\r\n%b\r\n" % (len(body), body) * times


def test_a_bucket_fills_with_time_and_not_beyond_its_size() -> None:
    bucket = Bucket(10, 0, 2)
    assert take(bucket, 1 * SECOND, 20, 0) == 0
    assert take(bucket, 1 * SECOND, 5, 0) == SECOND // 2
    assert take(bucket, 100 * SECOND, 20, 0) == 0
    assert take(bucket, 100 * SECOND, 10, 0) == 1 * SECOND


def test_a_bucket_of_bytes() -> None:
    bucket = Bucket(0, 100)
    assert take(bucket, SECOND, 1_000, 100) == 0
    assert take(bucket, SECOND, 0, 50) == SECOND // 2


class Paced(NoLogin):
    """Everybody may publish so much."""

    def __init__(self, rate: RateLimit) -> None:
        self.rate = rate

    def check(self, login: Login) -> Identity:
        return Identity(rate=self.rate)


def listener(nats: FakeNats) -> FakePeer:
    peer = nats.dial()
    peer.send(b"SUB a 1\r\n")
    return peer


def test_a_fast_publisher_is_read_later_and_loses_nothing() -> None:
    nats = FakeNats()
    nats.handshake.authenticator = Paced(RateLimit(msgs_per_second=10))
    publisher, reader = nats.dial(), listener(nats)
    publisher.send(pub(b"x", 20))
    assert reader.take().count(b"MSG") == 20
    assert not publisher.transport.reading
    nats.loop.advance(SECOND - 1)
    assert not publisher.transport.reading
    nats.loop.advance(1)
    assert publisher.transport.reading


def test_an_account_shares_its_rate() -> None:
    nats = FakeNats()
    nats.account.bucket = Bucket(10, 0, 1)
    one, two, reader = nats.dial(), nats.dial(), listener(nats)
    one.send(pub(b"x", 10))
    two.send(pub(b"x", 10))
    assert reader.take().count(b"MSG") == 20
    assert (one.transport.reading, two.transport.reading) == (True, False)
    nats.loop.advance(SECOND)
    assert two.transport.reading


def test_drop_keeps_a_slow_subscriber() -> None:
    nats = FakeNats(max_pending=1 << 20, slow_consumer="drop")
    publisher, slow = nats.dial(), listener(nats)
    slow.transport.room = 0
    body = b"x" * 60_000
    for _ in range(40):
        publisher.send(pub(body))
        nats.loop.advance(limits.NATS_STALL)
    nats.loop.advance(2 * limits.NATS_WRITE_DEADLINE)
    assert not slow.closed
    (session,) = (s for s in nats.frontend.sessions if s.subscriptions)
    got = 40 - session.dropped
    assert 0 < got < 40
    assert nats.frontend.dropped == session.dropped
    slow.transport.read_all()
    assert slow.take().count(b"MSG") == got


def test_pause_holds_the_publisher_as_long_as_it_takes() -> None:
    nats = FakeNats(max_pending=1 << 20, slow_consumer="pause")
    publisher, slow = nats.dial(), listener(nats)
    slow.transport.room = 0
    sent = 0
    while publisher.transport.reading:
        publisher.send(pub(b"x" * 60_000))
        nats.loop.run()
        sent += 1
    nats.loop.advance(20 * limits.NATS_STALL)
    assert not publisher.transport.reading
    assert not slow.closed
    slow.transport.read_all()
    nats.loop.advance(limits.NATS_STALL)
    assert publisher.transport.reading
    assert slow.take().count(b"MSG") == sent
