from __future__ import annotations

import pytest

from broker.routing.subjects import is_within, overlap


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (b"a.b", b"a.b", True),
        (b"a.b", b"a.c", False),
        (b"a.>", b"a.b.c", True),
        (b"a.*.c", b"a.b.>", True),
        (b"a.*.c", b"a.b.*", True),
        (b"a.*.c", b"*.b.c", True),
        (b"a.>", b"*.b", True),
        (b"a.>", b"a", False),
        (b">", b"*", True),
        (b"a.*.c", b"a.b.d", False),
        (b"a.*", b"a.*.c", False),
        (b"a.>.c", b"a.b.d", True),
        (b"b.>", b"a.>", False),
    ],
)
def test_overlap(one: bytes, other: bytes, expected: bool) -> None:
    assert overlap(one, other) == overlap(other, one) == expected


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        (b"a.b", b"a.b", True),
        (b"a.b", b"a.*", True),
        (b"a.b", b"a.>", True),
        (b"a.*", b"a.b", False),
        (b"a.*", b"*.*", True),
        (b"a.*", b"*", False),
        (b"a.>", b"a.>", True),
        (b"a.>", b">", True),
        (b"a.>", b"a.*", False),
        (b"a.*", b"a.>", True),
        (b"a", b"a.>", False),
        (b"a.>", b"a", False),
        (b">", b"*", False),
        (b"*", b">", True),
        (b"a.b.c", b"a.b", False),
        (b"a.>.c", b"a.*.c", True),
    ],
)
def test_is_within(inner: bytes, outer: bytes, expected: bool) -> None:
    assert is_within(inner, outer) is expected
