"""Subjects as a configuration names them: which are well-formed, what they have in common.

Here a subject is text; `foo.*` as a set of subjects lies within `foo.>`. A destination of a
mapping may name the source's wildcards: $1, {{wildcard(1)}}, {{partition(3,1,2)}},
{{split(1,-)}}, {{splitFromLeft(1,2)}} and the like. Source: nats-server sublist.go,
subject_transform.go.
"""

from __future__ import annotations

import re
from typing import Final

_ONE: Final = frozenset("*")  # stands for any one token
_SPACE: Final = re.compile(r"[\t\n\f\r ]")
_FUNCTION: Final = re.compile(r"\{\{\s*(\w+)\s*\((.*)\)\s*\}\}")
# Names of functions -> how many arguments they take; partition takes any number above one.
_FUNCTIONS: Final = {
    "[wW]ildcard": 1,
    "[pP]artition": 0,
    "[sS]plit[fF]rom[lL]eft": 2,
    "[sS]plit[fF]rom[rR]ight": 2,
    "[sS]lice[fF]rom[lL]eft": 2,
    "[sS]lice[fF]rom[rR]ight": 2,
    "[sS]plit": 2,
}
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")


def is_subject(text: str) -> bool:
    """Whether it may be subscribed to."""
    tokens = text.split(".")
    return (
        all(tokens)
        and ">" not in tokens[:-1]
        and not _SPACE.search(text)
        and "\0" not in text
        and "\ufffd" not in text
    )


def has_wildcard(subject: str) -> bool:
    """Whether it stands for more than one subject."""
    return not {"*", ">"}.isdisjoint(subject.split("."))


def is_literal(text: str) -> bool:
    """Whether it may be published to."""
    return is_subject(text) and not has_wildcard(text)


def is_within(subject: str, pattern: str) -> bool:
    """Whether everything that matches `subject` matches `pattern`."""
    tokens, test = subject.split("."), pattern.split(".")
    for index, wanted in enumerate(test):
        if index >= len(tokens) or not wanted:
            return False
        if wanted == ">":
            return True
        if tokens[index] in ("", ">"):
            return False
        if wanted != tokens[index] and (wanted != "*" and not _wide(wanted, tokens[index])):
            return False
    return len(tokens) == len(test)


def _wide(wanted: str, token: str) -> bool:
    # The original looks at the first letter of a pattern's token only.
    return wanted.startswith("*") and token not in _ONE


def collide(one: str, other: str) -> bool:
    """Whether some subject may match both."""
    if one == other:
        return True
    first, second = one.split("."), other.split(".")
    if not has_wildcard(one):
        return has_wildcard(other) and is_within(one, other)
    if not has_wildcard(other):
        return is_within(other, one)
    if len(first) != len(second):
        shorter = first if len(first) < len(second) else second
        if ">" not in shorter:
            return False
    return all(map(_can_match, first, second))


def _can_match(one: str, other: str) -> bool:
    if not one or not other:
        return False
    return one[0] in "*>" or other[0] in "*>" or one == other


def numbered(subject: str) -> str:
    """Each * becomes $1, $2 ..."""
    count = 0
    tokens = []
    for token in subject.split("."):
        count += token in _ONE
        tokens.append(f"${count}" if token in _ONE else token)
    return ".".join(tokens)


def unnumbered(subject: str) -> str:
    """$1 and {{wildcard(1)}} become *."""
    tokens = subject.split(".")
    return ".".join("*" if _names_wildcard(token) else token for token in tokens)


def _names_wildcard(token: str) -> bool:
    if len(token) > 1 and token[0] == "$" and token[1] in "123456789":
        return True
    match = _FUNCTION.search(token)
    return bool(match and match[1].lower() == "wildcard" and match[2] and "," not in match[2])


def wrong_mapping(source: str, destination: str, reversible: bool = False) -> str:
    """Why messages cannot go from one to the other; empty if they can.

    `reversible`: as imports need it, which use each wildcard, and no functions.
    """
    if not is_subject(source):
        return f"{source!r} is no subject"
    theirs, tokens = source.split("."), destination.split(".")
    if not all(tokens) or ">" in tokens[:-1] or "*" in tokens:
        return f"{destination!r} is no destination"
    if (theirs[-1] == ">") != (tokens[-1] == ">"):
        return f"either both or none of {source!r} and {destination!r} end in >"
    wildcards, used = theirs.count("*"), 0
    for token in tokens:
        reason, indexes = _wrong_token(token)
        if not reason and reversible and indexes and not _names_wildcard(token):
            reason = "imports take no function but wildcard"
        if not reason and any(index > wildcards for index in indexes):
            reason = f"{source!r} has fewer wildcards"
        if reason:
            return f"{token!r}: {reason}"
        used += len(indexes)
    unused = reversible and used < wildcards
    return f"{destination!r} does not use all wildcards of {source!r}" if unused else ""


def _wrong_token(token: str) -> tuple[str, list[int]]:
    """What is wrong with a token of a destination, and the wildcards it uses."""
    if len(token) > 1 and token[0] == "$":
        return "", [int(token[1:])] if _NUMBER.fullmatch(token[1:]) else []
    if not (len(token) > 4 and token.startswith("{{") and token.endswith("}}")):
        return ("a space in a subject" if _SPACE.search(token) else ""), []
    match = _FUNCTION.search(token)
    known = [count for name, count in _FUNCTIONS.items() if match and re.fullmatch(name, match[1])]
    if match is None or not known:
        return "unknown function", []
    name, arguments, wanted = match[1].lower(), re.split(r",\s*", match[2]), known[0]
    numbers = arguments[:1] if name == "split" else arguments
    indexes = arguments[1:] if name == "partition" else arguments[:1]
    reason = ""
    if (wanted and len(arguments) != wanted) or (not wanted and len(arguments) < 2):
        reason = "wrong number of arguments"
    elif not all(_NUMBER.fullmatch(number.strip(" ")) for number in numbers):
        reason = "arguments are numbers"
    elif name == "split" and (" " in arguments[1] or not arguments[1]):
        reason = "cannot split by that"
    return reason, [] if reason else [int(index) for index in indexes]
