"""The journal of a consumer's place, from the state that nats-server kept of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.base.units import SECOND
from broker.engine.cursor.journal import encode_journal

if TYPE_CHECKING:
    from broker.importers.jetstream.source import State

# Operations of the journal; see engine/cursor/journal.pxd.
_NEXT: Final = 2
_CLOCK: Final = 6
_SENT: Final = 7
_AGAIN: Final = 8
_DELIVERED: Final = 9
_SETTLED: Final = 10
_START: Final = 14

_MS: Final = SECOND // 1000


def journal_of(state: State) -> bytes:
    """What a cursor of this place would have written."""
    floor, delivered = state.floor, state.delivered
    ops = [
        (_START, delivered[0] + 1, 0, 0),
        (_NEXT, delivered[0] + 1, 0, 0),
        (_DELIVERED, *delivered, 0),
        (_SETTLED, *floor, 0),
    ]
    clock = None
    for number, each in enumerate(sorted(state.pending, key=lambda each: each.seq), 1):
        if not floor[0] < each.seq <= delivered[0]:
            continue
        if each.sent_s != clock:
            clock = each.sent_s
            ops.append((_CLOCK, max(clock, 0) * SECOND // _MS, 0, 0))
        # Older servers did not keep the number of the delivery.
        consumer_seq = each.consumer_seq or floor[1] + number
        ops.append((_SENT, each.seq, 1, consumer_seq))
        if each.deliveries > 1:
            ops.append((_AGAIN, each.seq, each.deliveries, 0))
    return encode_journal(ops)
