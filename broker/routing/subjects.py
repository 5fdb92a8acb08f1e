"""Comparisons of subjects with wildcards: `*` is one token, a final `>` is one or more."""

from __future__ import annotations


def is_within(inner: bytes, outer: bytes) -> bool:
    """Whether every subject that `inner` matches is matched by `outer`."""
    tokens, wanted = inner.split(b"."), outer.split(b".")
    end, last = len(tokens) - 1, len(wanted) - 1
    for i, token in enumerate(wanted):
        if token == b">" and i == last:
            return end >= i
        if i > end or (tokens[i] == b">" and i == end):
            return False
        if token not in (b"*", tokens[i]):
            return False
    return end == last


def overlap(one: bytes, other: bytes) -> bool:
    """Whether a subject exists that both match. A `>` before the end counts as one at the end."""
    first, second = one.split(b"."), other.split(b".")
    for mine, yours in zip(first, second, strict=False):
        if b">" in (mine, yours):
            return True
        if mine != yours and b"*" not in (mine, yours):
            return False
    return len(first) == len(second)
