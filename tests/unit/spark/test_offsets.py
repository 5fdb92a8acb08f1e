"""Offsets: what Spark keeps of a query in its checkpoint."""

from __future__ import annotations

import json
import random

import pytest

from broker.spark.errors import OptionError
from broker.spark.offsets import Offset, TopicPartition, dump, load

OFFSETS = {
    TopicPartition("orders", 10): Offset(7, "aa"),
    TopicPartition("orders", 2): Offset(2**63 - 1, "bb"),
    TopicPartition("a.b", 0): Offset(1, "cc"),
    TopicPartition("é", 0): Offset(42, "dd"),
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
    assert dump({TopicPartition("t", 0): Offset(42, "9f3a")}) == {
        "t": {"0": {"inc": "9f3a", "seq": 42}}
    }
    one = {"t": {"0": {"seq": 42, "inc": "9f3a"}}}
    assert load(one) == {TopicPartition("t", 0): Offset(42, "9f3a")}


@pytest.mark.parametrize("text", ["[]", '{"t": 4}', '{"t": {"x": {}}}', '{"t": {"0": {"seq": 1}}}'])
def test_what_is_no_offset(text: str) -> None:
    with pytest.raises(OptionError, match="invalid offset"):
        load(json.loads(text))
