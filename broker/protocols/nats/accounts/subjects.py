"""Comparison of subjects with wildcards, for imports and mappings.

Source: nats-server server/sublist.go (isValidSubject, SubjectsCollide), subject_transform.go.
"""

from __future__ import annotations

import re
from typing import Final

from broker.base.patterns import lazy_pattern
from broker.protocols.nats import errors
from broker.protocols.nats.accounts.placeholders import parse, wrong
from broker.protocols.nats.accounts.transform import is_within, overlap

SUBJECT_MAX: Final = 0xFFFF  # bytes of any subject
_BLANK: Final = lazy_pattern(r"[\t\n\f\r ]")
_NUMBERED: Final = lazy_pattern(r"\$[1-9].*")
_WILDCARD: Final = lazy_pattern(
    r"\{\{[\t\n\f\r ]*[wW]ildcard[\t\n\f\r ]*\(([^,]+)\)[\t\n\f\r ]*\}\}", re.DOTALL
)


def raw(subject: str) -> bytes:
    """The wire bytes of a configured subject."""
    return subject.encode("utf-8", "surrogateescape")


def is_subject(text: str) -> bool:
    """Whether the text is a valid subject for a subscription."""
    tokens = text.split(".")
    if not all(tokens) or ">" in tokens[:-1] or _BLANK.search(text):
        return False
    return len(raw(text)) <= SUBJECT_MAX


def has_wildcard(subject: str) -> bool:
    """Whether the subject has wildcards."""
    return not {"*", ">"}.isdisjoint(subject.split("."))


def lies_within(subject: str, pattern: str) -> bool:
    """Whether every match of `subject` also matches `pattern`."""
    return is_within(raw(subject), raw(pattern))


def collide(one: str, other: str) -> bool:
    """Whether a subject can match both."""
    return overlap(raw(one), raw(other))


def numbered(subject: str) -> str:
    """Replace each * by $1, $2 ..."""
    tokens = subject.split(".")
    count = 0
    for index, text in enumerate(tokens):
        if text == "*":
            count += 1
            tokens[index] = f"${count}"
    return ".".join(tokens)


def unnumbered(subject: str) -> tuple[str, list[str]]:
    """Replace $2 and {{wildcard(2)}} by *; also returns the replaced tokens in order."""
    tokens = subject.split(".")
    placeholders = []
    for index, token in enumerate(tokens):
        if _NUMBERED.fullmatch(token) or _WILDCARD.search(token):
            placeholders.append(token)
            tokens[index] = "*"
    return ".".join(tokens), placeholders


def reverse(source: str, destination: str) -> tuple[str, str]:
    """The source and destination of the inverse transform; see Transform."""
    pattern, placeholders = unnumbered(destination)
    wildcards = [one.wildcards[0] for one in map(parse, placeholders) if one is not None]
    tokens = source.split(".")
    count = 0
    for index, text in enumerate(tokens):
        if text == "*":
            count += 1
            if count not in wildcards:
                raise wrong(errors.NATS_MAPPING_UNUSED, destination)
            tokens[index] = f"${wildcards.index(count) + 1}"
    return pattern, ".".join(tokens)
