"""Error texts: the parts that are filled in."""

from __future__ import annotations

import pytest

from broker.base.gotext import go_quote


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"foo", '"foo"'),
        (b'a"b\\c', '"a\\"b\\\\c"'),
        (b"\x00\x01\x7f\a\b\f\n\r\t\v", '"\\x00\\x01\\x7f\\a\\b\\f\\n\\r\\t\\v"'),
        (b"\xff\xfe", '"\\xff\\xfe"'),
        ("äö€".encode(), '"äö€"'),
        ("\u00a0\u2028\U000e0001".encode(), '"\\u00a0\\u2028\\U000e0001"'),
    ],
)
def test_go_quote(raw: bytes, quoted: str) -> None:
    assert go_quote(raw) == quoted
