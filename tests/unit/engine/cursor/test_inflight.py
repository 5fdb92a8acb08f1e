"""The memory of the entries of a cursor, and the table that finds them."""

from __future__ import annotations

import random

import pytest
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


def test_a_table_that_grows_moves_a_part_at_a_time() -> None:
    """One turn of the loop does not wait for the whole of a large table."""
    entries, before, most = Entries(Inflight()), 0, 0
    for seq in range(1, 200_000):
        entries.make(seq)
        if 0 < entries.unmoved < before:
            most = max(most, before - entries.unmoved)
        before = entries.unmoved
    assert 0 < most < 500  # some slots and the rest of a run


@pytest.mark.parametrize("extra", [0, 1, 7, 20, 40])
def test_entries_are_found_and_freed_while_the_table_grows(extra: int) -> None:
    chance = random.Random(extra)
    entries = Entries(Inflight())
    seqs = chance.sample(range(1, 2**40), 769 + extra)  # beyond three quarters of 1024
    for seq in seqs:
        entries.make(seq)
    assert entries.unmoved
    chance.shuffle(seqs)
    gone = set()
    for n, seq in enumerate(seqs):
        entries.free(seq)
        gone.add(seq)
        if n % 16 == 0:
            assert all((each in entries) == (each not in gone) for each in seqs)
        if n % 64 == 0 and entries.unmoved:
            entries.make(seq)
            gone.discard(seq)
    assert entries.size == len(seqs) - len(gone)


def test_a_table_that_grows_is_cleared() -> None:
    entries = Entries(Inflight())
    for seq in range(1, 770):
        entries.make(seq)
    assert entries.unmoved
    entries.clear()
    assert (entries.unmoved, 1 in entries, 769 in entries) == (0, False, False)
