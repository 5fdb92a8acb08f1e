"""Names of topics, patterns of them in the configuration, and subjects that logs are bound to."""

from __future__ import annotations

import re

from broker.engine import limits


def check_pattern(pattern: str) -> None:
    """Refuse what cannot match a topic: blanks, empty tokens, `>` before the end."""
    tokens = pattern.split(".")
    if re.search(r"\s", pattern) or "" in tokens:
        raise ValueError(f"not a pattern: {pattern!r} has a blank or an empty token")
    if ">" in tokens[:-1]:
        raise ValueError(f"not a pattern: {pattern!r} has > before its end")


def check_topic(name: str) -> None:
    """Refuse what a topic on disk cannot be called; an empty name is up to the caller."""
    if not re.fullmatch(rf"[.a-zA-Z0-9_-]{{0,{limits.TOPIC_NAME_MAX}}}", name):
        raise ValueError(f"not the name of a topic: {name!r}")


def pattern_matches(pattern: str, name: str) -> bool:
    """Whether a topic's name matches: * is one token, a final > is one or more."""
    wanted, tokens = pattern.split("."), name.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        w in ("*", t) for w, t in zip(wanted, tokens, strict=True)
    )


def check_subject(subject: str) -> None:
    """Refuse what a log cannot be bound to. ValueError."""
    check_pattern(subject)
    if len(subject.encode()) > limits.LOG_SUBJECT_BYTES_MAX:
        raise ValueError(f"subject too long: {subject[:100]}...")
    if any(char <= " " for char in subject):
        raise ValueError(f"not a subject: {subject!r} has a control character")


def overlap(one: str, other: str) -> bool:
    """Whether a subject can match both patterns."""
    first, second = one.split("."), other.split(".")
    for mine, yours in zip(first, second, strict=False):
        if ">" in (mine, yours):
            return True
        if mine != yours and "*" not in (mine, yours):
            return False
    return len(first) == len(second)


def literal_part(pattern: str) -> str:
    """What all subjects that match begin with."""
    tokens = pattern.split(".")
    for number, token in enumerate(tokens):
        if token in ("*", ">"):
            return "".join(f"{each}." for each in tokens[:number])
    return pattern
