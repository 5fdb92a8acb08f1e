"""Which names topics and channels may have, and which of them a pattern matches."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.engine.names import is_ephemeral, is_name, pattern_matches


@given(
    st.text("ab.-_Z9#ephmrl*\n", max_size=12).map(str.encode)
    | st.integers(50, 66).map(lambda n: b"a" * n)
    | st.integers(50, 58).map(lambda n: b"a" * n + b"#ephemeral")
)
@example(b"a#ephemeral")
@example(b"#ephemeral")
@example(b"a\n")
def test_names(name: bytes) -> None:
    legal = re.fullmatch(rb"[.a-zA-Z0-9_-]+(#ephemeral)?", name) and 1 <= len(name) <= 64
    assert is_name(name) == bool(legal)
    if legal:
        assert is_ephemeral(name) == name.endswith(b"#ephemeral")


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("*.b", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("*.*", "foo.>", True),
    ],
)
def test_pattern(pattern: str, name: str, expected: bool) -> None:
    assert pattern_matches(pattern, name) is expected
