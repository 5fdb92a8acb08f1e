"""When a connection was active last: it sent something, or was sent a message."""

from __future__ import annotations

import pytest
from support.fakes.loop import FakeNats

from broker.base import units

SECOND = units.SECOND


@pytest.mark.parametrize("count", [1, 3])
def test_a_delivery_is_activity(count: int) -> None:
    nats = FakeNats(ping_interval_ns=10 * SECOND)
    reader, writer = nats.dial(), nats.dial()
    reader.send(b"SUB a 1\r\n")
    nats.loop.advance(5 * SECOND)
    assert reader.take() == b"PING\r\n"
    reader.send(b"PONG\r\n")
    assert reader.session.active_ns == nats.loop.now_ns - 5 * SECOND
    for _ in range(12):  # so no PING has to ask whether it is there
        writer.send(b"PUB a 1\r\nx\r\n" * count)
        assert reader.session.active_ns == nats.loop.now_ns
        assert reader.take() == b"MSG a 1 1\r\nx\r\n" * count
        nats.loop.advance(5 * SECOND)
