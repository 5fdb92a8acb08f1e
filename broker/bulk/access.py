"""Who may do what at the bulk door.

A file has a line for each token: `NAME TOKEN RIGHTS [PATTERN ...]`, where RIGHTS are of read, write
and hold with commas between them, and patterns are of topics; none means all. Blank lines and those
that begin with # say nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.bulk import errors
from broker.bulk.responses import RefusedError
from broker.engine.names import check_pattern, pattern_matches

if TYPE_CHECKING:
    from pathlib import Path

READ: Final = "read"
WRITE: Final = "write"
HOLD: Final = "hold"
RIGHTS: Final = frozenset({READ, WRITE, HOLD})


class TokenFileError(ValueError):
    """A file of tokens does not read; says the line."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what that one may do."""

    name: str
    rights: frozenset[str] = RIGHTS
    patterns: tuple[str, ...] = ()  # none: every topic
    owner: str | None = None  # the name of the token; None: no token is asked for

    def may(self, right: str, topic: str | None = None) -> bool:
        """Whether this is allowed, for this topic or in general."""
        return right in self.rights and (
            topic is None
            or not self.patterns
            or any(pattern_matches(pattern, topic) for pattern in self.patterns)
        )

    def need(self, right: str, topic: str | None = None) -> None:
        """RefusedError unless it is."""
        if not self.may(right, topic):
            raise RefusedError(errors.BULK_FORBIDDEN, name=self.name, right=right)


def digest(token: str) -> bytes:
    """What is kept of a token and compared: of one length, whatever the token's is."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: Path) -> list[tuple[bytes, Caller]]:
    """The tokens of a file. OSError; TokenFileError."""
    found = []
    for number, line in enumerate(path.read_text("utf-8", "surrogateescape").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3:
            raise TokenFileError(f"{path}:{number}: write NAME TOKEN RIGHTS [PATTERN ...]")
        name, token, rights, *patterns = words
        unknown = sorted(set(rights.split(",")) - RIGHTS)
        if unknown:
            raise TokenFileError(f"{path}:{number}: no such right: {', '.join(unknown)}")
        for pattern in patterns:
            try:
                check_pattern(pattern)
            except ValueError as problem:
                raise TokenFileError(f"{path}:{number}: {problem}") from None
        caller = Caller(name, frozenset(rights.split(",")), tuple(patterns), name)
        found.append((digest(token), caller))
    return found


class Access:
    """The tokens that hold now."""

    def __init__(self, path: Path | None) -> None:
        """None: nobody is asked. OSError, TokenFileError."""
        self.path = path
        self.tokens = [] if path is None else read_tokens(path)

    def reload(self) -> None:
        """Read the file again; OSError and TokenFileError leave everything as it was."""
        if self.path is not None:
            self.tokens = read_tokens(self.path)

    def caller(self, authorization: str | None, peer: str) -> Caller:
        """Whose request this is. RefusedError."""
        if self.path is None:
            return Caller(peer)
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RefusedError(errors.BULK_NO_TOKEN)
        given, found = digest(token.strip()), None
        for known, caller in self.tokens:  # all of them: time says nothing about which it was
            if hmac.compare_digest(known, given):
                found = caller
        if found is None:
            raise RefusedError(errors.BULK_BAD_TOKEN)
        return found
