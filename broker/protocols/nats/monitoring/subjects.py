"""Subjects that are compared with each other, for pages that are asked about one of them."""

from __future__ import annotations

_WILD = (b"*", b">")


def is_literal(subject: str) -> bool:
    """Whether a message can be published there: tokens, none empty, none a wildcard."""
    return all(token and token not in ("*", ">") for token in subject.split("."))


def collide(one: bytes, other: bytes) -> bool:
    """Whether there is a message that both of them find."""
    if one == other:
        return True
    left, right = one.split(b"."), other.split(b".")
    for mine, yours in zip(left, right, strict=False):
        if b">" in (mine, yours):
            return True
        if mine != yours and mine not in _WILD and yours not in _WILD:
            return False
    return len(left) == len(right)
