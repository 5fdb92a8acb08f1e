"""Placeholders in a destination for parts of the source: $1, {{partition(3,1)}} ...

    orders.*.*  ->  orders.{{partition(4,1)}}.$2        orders.ann.7 -> orders.2.7

The checks and error texts are those of nats-server (server/subject_transform.go).
"""

from __future__ import annotations

from typing import Final

from broker.base.patterns import lazy_pattern
from broker.base.values import NamedTuple
from broker.protocols.nats import errors

TAIL: Final = ">"
INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 64  # including leading zeros
_SPACES: Final = lazy_pattern(r"[\t\n\f\r ]")
_COMMA: Final = lazy_pattern(r",[\t\n\f\r ]*")
_INTEGER: Final = lazy_pattern(r"[+-]?[0-9]+")
# In the order of the search.
_SPELLINGS: Final = {
    "wildcard": "[wW]ildcard",
    "partition": "[pP]artition",
    "splitfromleft": "[sS]plit[fF]rom[lL]eft",
    "splitfromright": "[sS]plit[fF]rom[rR]ight",
    "slicefromleft": "[sS]lice[fF]rom[lL]eft",
    "slicefromright": "[sS]lice[fF]rom[rR]ight",
    "right": "[rR]ight",
    "left": "[lL]eft",
    "split": "[sS]plit",
    "random": "[rR]andom",
}
_FUNCTIONS: Final = {
    name: lazy_pattern(r"\{\{[\t\n\f\r ]*" + spelling + r"[\t\n\f\r ]*\((.*)\)[\t\n\f\r ]*\}\}")
    for name, spelling in _SPELLINGS.items()
}
_INT32_MAX: Final = 2**31 - 1
_WHOLE: Final = ("partition", "random")  # functions that need no wildcard


class MappingError(ValueError):
    """An invalid combination of source and destination."""


class Placeholder(NamedTuple):
    """A function of wildcards of the source."""

    function: str
    wildcards: tuple[int, ...]  # counted from 1; values below 1 mean the first token
    number: int = 0  # partitions, position or size; of `random`: how many numbers
    delimiter: str = ""


def wrong(error: str, token: str) -> MappingError:
    """The error for one token."""
    return MappingError(errors.NATS_MAPPING.format(why=error, token=token))


def integer(text: str) -> int | None:
    """A signed decimal number of 64 bits, or None."""
    if not _INTEGER.fullmatch(text) or len(text) > _DIGITS_MAX:
        return None
    value = int(text)
    return value if -INT64_MAX - 1 <= value <= INT64_MAX else None


def is_function(token: str) -> bool:
    """Whether a token has the form of a function, known or not."""
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


def parse(token: str) -> Placeholder | None:
    """The placeholder in a token of a destination; None if it is plain text."""
    if len(token) > 1 and token[0] == "$":
        number = integer(token[1:])
        return None if number is None else Placeholder("wildcard", (number,))
    if not is_function(token):
        return None
    for name, pattern in _FUNCTIONS.items():
        match = pattern.search(token)
        if match is not None:
            return _call(name, _COMMA.split(match[1]), token)
    raise wrong(errors.NATS_MAPPING_FUNCTION, token)


def _call(name: str, arguments: list[str], token: str) -> Placeholder:
    most = {"wildcard": 1, "partition": len(arguments)}.get(name, 2)
    least = 1 if name in {"wildcard", *_WHOLE} else 2
    if name == "random" and len(arguments) > 1:
        raise wrong(errors.NATS_MAPPING_FEW, token)
    if len(arguments) < least or (arguments == [""] and name not in _WHOLE):
        raise wrong(errors.NATS_MAPPING_FEW, token)
    if len(arguments) > most:
        raise wrong(errors.NATS_MAPPING_MANY, token)
    if name == "split":
        if " " in arguments[1]:
            raise wrong(errors.NATS_MAPPING_ARGUMENT, token)
        return Placeholder(name, (_number(arguments[0], token),), 0, arguments[1])
    numbers = [_number(argument, token) for argument in arguments]
    if name == "wildcard":
        return Placeholder(name, (numbers[0],))
    if numbers[-1 if name not in _WHOLE else 0] > _INT32_MAX:
        raise wrong(errors.NATS_MAPPING_ARGUMENT, token)
    if name == "random":
        return Placeholder(name, (), max(0, numbers[0]))
    if name == "partition":  # 32 bits, as in the original
        return Placeholder(name, tuple(numbers[1:]), numbers[0] & 0xFFFFFFFF)
    return Placeholder(name, (numbers[0],), _int32(numbers[1]))


def _number(text: str, token: str) -> int:
    value = integer(text.strip(" "))
    if value is None:
        raise wrong(errors.NATS_MAPPING_ARGUMENT, token)
    return value


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def check_destination(subject: str) -> None:
    """Raise MappingError for an invalid destination, before the source is checked."""
    tokens = subject.split(".")
    after_tail = False
    for token in tokens:
        if not token:
            raise MappingError(errors.NATS_MAPPING_BLANK)
        if after_tail:
            raise wrong(errors.NATS_MAPPING_SUBJECT, token)
        after_tail = token == TAIL
        if is_function(token):
            if not any(pattern.search(token) for pattern in _FUNCTIONS.values()):
                raise wrong(errors.NATS_MAPPING_FUNCTION, token)
        elif _SPACES.search(token):
            raise MappingError(errors.NATS_MAPPING_BLANK)


def _shape(subject: str) -> tuple[list[str], int, bool]:
    """The tokens, the number of `*`, whether the last one is `>`."""
    tokens = subject.split(".")
    if not all(tokens) or ">" in tokens[:-1]:
        raise MappingError(errors.NATS_BAD_SUBJECT)
    return tokens, tokens.count("*"), tokens[-1] == ">"


def compile_tokens(
    source: str, destination: str, *, strict: bool
) -> list[tuple[str, Placeholder | None]]:
    """Compile a destination token by token; `strict`: for imports, which must be reversible."""
    _, wildcards, tail = _shape(source)
    tokens, stars, to_tail = _shape(destination)
    if stars or tail != to_tail:
        raise MappingError(errors.NATS_BAD_SUBJECT)
    found = []
    used = 0
    for token in tokens:
        placeholder = parse(token)
        found.append((token, placeholder))
        if placeholder is None:
            continue
        if strict and placeholder.function != "wildcard" and (wildcards or tail):
            raise wrong(errors.NATS_MAPPING_IMPORT, token)
        if wildcards == 0 and (placeholder.wildcards or placeholder.function not in _WHOLE):
            shown = f"{token}: [{placeholder.wildcards[0]}]" if tail else token
            raise wrong(errors.NATS_MAPPING_RANGE, shown)
        used += len(placeholder.wildcards)
        for number in placeholder.wildcards:
            if number > wildcards:
                raise wrong(errors.NATS_MAPPING_RANGE, f"{token}: [{number}]")
    if strict and used < wildcards:
        raise wrong(errors.NATS_MAPPING_UNUSED, destination)
    return found
