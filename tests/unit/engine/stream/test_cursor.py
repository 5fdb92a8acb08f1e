"""Cursors of streams: what is delivered, when again, and what counts as settled."""

from __future__ import annotations

from support.engine import SECOND, Rig, numbered
from support.native.streams import Taker

from broker.engine.log.publish import append
from broker.engine.stream.cursor import StreamCursor


def test_messages_are_delivered_once_in_order_and_settled_by_their_acks() -> None:
    with Rig(None, clock=(SECOND, SECOND)) as rig:
        log = rig.engine.open_log("js.A/s", protocol="jetstream", retention="limits")
        taker = Taker(StreamCursor(log, "c", 1, ack_wait_ns=SECOND))
        for body in numbered(4):
            append(log, body)
        rig.settle()
        assert [(seq, n, cseq) for seq, n, cseq, _, _ in taker.got()] == [
            (1, 1, 1),
            (2, 1, 2),
            (3, 1, 3),
            (4, 1, 4),
        ]
        cursor = taker.cursor
        assert taker.ack(2)
        assert cursor.ack_floor == (0, 0)
        assert taker.ack(1)
        assert cursor.ack_floor == (2, 2)
        assert cursor.num_ack_pending == 2
        rig.advance(1)
        assert [(seq, n, cseq) for seq, n, cseq, _, _ in taker.got()] == [(3, 2, 5), (4, 2, 6)]
        assert cursor.num_redelivered == 2
        assert taker.ack(4) == 2
        assert taker.ack(3) == 2
        assert cursor.ack_floor == cursor.delivered == (6, 4)
