"""The shape of bodies: equal for what differs in values, and never an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.spark.triage.shape import shape_of

ID = "0b5f8f7e-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (b"", "empty"),
        (b'{"b": 1, "a": "x"}', '{"a": string, "b": number}'),
        (b' \n{"a": {"b": [1, null, "x"]}}', '{"a": {"b": [null | number | string]}}'),
        (b'{"1": true, "22": false}', "{<id>: boolean}"),
        (f'{{"{ID}": 1, "9f86d081884c7d65": 2}}'.encode(), "{<id>: number}"),
        (b'{"a":{"b":{"c":{"d":1}}}}', '{"a": {"b": {"c": {...}}}}'),
        (b"[[[[1]]]]", "[[[[...]]]]"),
        (b"[]", "[]"),
        (b"17", "number"),
        (b"NaN", "text"),
        (b"null", "null"),
        (b"plain words", "text"),
        (b'{"cut": ', "text"),
        (b"<?xml version='1.0'?><order id='1'/>", "XML <order>"),
        (b"<!-- a --><a:b/>", "XML <a:b>"),
        (b"\xff\xfe", "binary"),
        (b"nul\0byte", "binary"),
        (b"\x1f\x8b\x08data", "binary (gzip)"),
        (b"[" * 30_000, "JSON, nested deeply"),
        (b"9" * 5000, "text"),
        (json.dumps({f"k{n:c<3}x": n for n in range(40)}).encode(), "{many fields}"),
    ],
)
def test_shapes(body: bytes, shape: str) -> None:
    assert shape_of(body) == shape


def test_a_long_key_is_cut() -> None:
    assert len(shape_of(json.dumps({"k" * 10_000: 1}).encode())) < 80


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(VALUES)
def test_any_json(value: Any) -> None:
    shape = shape_of(json.dumps(value).encode())
    assert shape == shape_of(json.dumps(value, indent=3).encode())


@given(st.binary())
def test_any_bytes(body: bytes) -> None:
    assert shape_of(body)


@given(st.integers(-(10**9), 10**9), st.text(max_size=20), st.integers(-(10**9), 10**9), st.text())
def test_values_do_not_matter(a: int, b: str, c: int, d: str) -> None:
    first, second = ({"n": x, "s": y, "l": [x]} for x, y in ((a, b), (c, d)))
    assert shape_of(json.dumps(first).encode()) == shape_of(json.dumps(second).encode())
