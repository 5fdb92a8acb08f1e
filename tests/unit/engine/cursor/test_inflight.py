"""The memory of the entries of a cursor."""

from __future__ import annotations

from support.native.cursors import Entries

from broker.base.units import KIB
from broker.engine.cursor.inflight import Inflight
from broker.runtime.memory import used_bytes

CURSORS = 200


def test_a_cursor_with_one_entry_takes_little_memory() -> None:
    """There may be thousands of them: channels, durables and consumers."""
    cursors = [Entries(Inflight()) for _ in range(CURSORS)]
    before = used_bytes()
    for cursor in cursors:
        cursor.make(1)
    assert used_bytes() - before < CURSORS * 8 * KIB
