# cython: language_level=3
"""Names of topics, and patterns of them in the configuration.

The rule itself is C in names.h: scanners of protocols include it, so that a check costs no call.
This module imports nothing, and wire formats may import it.
"""
cimport cython

import re

NAME_MAX = NAME_BYTES_MAX


def is_name(bytes name not None):
    """Whether a topic or channel may be called this."""
    return bool(name_ok(name, <size_t>len(name)))


def is_ephemeral(bytes name not None):
    """Whether the name ends in #ephemeral: then nothing of it is kept on disk."""
    return bool(name_is_ephemeral(name, <size_t>len(name)))


@cython.wraparound(True)
def check_pattern(str pattern not None):
    """Refuse what cannot match a topic: blanks, empty tokens, `>` before the end."""
    tokens = pattern.split(".")
    if re.search(r"\s", pattern) or "" in tokens:
        raise ValueError(f"not a pattern: {pattern!r} has a blank or an empty token")
    if ">" in tokens[:-1]:
        raise ValueError(f"not a pattern: {pattern!r} has > before its end")


def check_topic(str name not None):
    """Refuse what a topic on disk cannot be called; an empty name is up to the caller."""
    if not re.fullmatch(rf"[.a-zA-Z0-9_-]{{0,{NAME_MAX}}}", name):
        raise ValueError(f"not the name of a topic: {name!r}")


@cython.wraparound(True)
def pattern_matches(str pattern not None, str name not None):
    """Whether a topic's name matches: * is one token, a final > is one or more.

    Also whether a pattern is as wide as another one, given as the name.
    """
    wanted, tokens = pattern.split("."), name.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        w in ("*", t) for w, t in zip(wanted, tokens, strict=True)
    )
