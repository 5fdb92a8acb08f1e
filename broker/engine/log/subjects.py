"""Subjects that logs are bound to: patterns with * for one token and a final > for the rest."""

from __future__ import annotations

from broker.engine import limits
from broker.engine.names import check_pattern


def check_subject(subject: str) -> None:
    """Refuse what a log cannot be bound to. ValueError."""
    check_pattern(subject)
    if len(subject.encode()) > limits.LOG_SUBJECT_BYTES_MAX:
        raise ValueError(f"subject too long: {subject[:100]}...")
    if any(char <= " " for char in subject):
        raise ValueError(f"not a subject: {subject!r} has a control character")


def literal_part(pattern: str) -> str:
    """What all subjects that match begin with."""
    tokens = pattern.split(".")
    for number, token in enumerate(tokens):
        if token in ("*", ">"):
            return "".join(f"{each}." for each in tokens[:number])
    return pattern
