"""Offsets: what Spark keeps of a query in its checkpoint."""

from __future__ import annotations

import json
import random

import pytest

from broker.spark.errors import OptionError
from broker.spark.offsets import Mark, Place, dump, load

OFFSETS = {
    Place("orders", 10): Mark(7, "aa"),
    Place("orders", 2): Mark(2**63 - 1, "bb"),
    Place("a.b", 0): Mark(1, "cc"),
    Place("é", 0): Mark(42, "dd"),
}


def test_round_trip_through_json() -> None:
    assert load(json.loads(json.dumps(dump(OFFSETS)))) == OFFSETS
    assert load({}) == {}


def test_equal_offsets_are_equal_text() -> None:
    """Spark compares the text: another order of keys would be news without any record."""
    text = json.dumps(dump(OFFSETS))
    for seed in range(20):
        items = list(OFFSETS.items())
        random.Random(seed).shuffle(items)
        assert json.dumps(dump(dict(items))) == text


def test_the_form() -> None:
    assert dump({Place("t", 0): Mark(42, "9f3a")}) == {"t": {"0": {"inc": "9f3a", "seq": 42}}}
    one = {"t": {"0": {"seq": 42, "inc": "9f3a"}}}
    assert load(one) == {Place("t", 0): Mark(42, "9f3a")}


@pytest.mark.parametrize("text", ["[]", '{"t": 4}', '{"t": {"x": {}}}', '{"t": {"0": {"seq": 1}}}'])
def test_what_is_no_offset(text: str) -> None:
    with pytest.raises(OptionError, match="not an offset"):
        load(json.loads(text))
