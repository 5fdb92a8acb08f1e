"""Access to the bulk API: callers with their permissions, and the identity of the broker.

The token file has a line for each token: `NAME TOKEN RIGHTS [PATTERN ...]`. RIGHTS is a list of
read, write and hold, separated by commas; patterns match topics, and none means all topics. Blank
lines and those that begin with # are ignored.

The identity, an id and a partition number, is stored in the data folder, because offsets of
pipelines contain it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from broker.base.durable import save, unsealed
from broker.base.values import dataclass
from broker.bulk import errors, limits
from broker.bulk.errors import RefusedError
from broker.engine.names import check_pattern, pattern_matches

if TYPE_CHECKING:
    from pathlib import Path

READ: Final = "read"
WRITE: Final = "write"
HOLD: Final = "hold"
PERMISSIONS: Final = frozenset({READ, WRITE, HOLD})


log = logging.getLogger("broker.bulk")
IDENTITY = "broker.json"


class TokenFileError(ValueError):
    """A token file is invalid; the text names the line."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request, and its permissions."""

    name: str
    permissions: frozenset[str] = PERMISSIONS
    patterns: tuple[str, ...] = ()  # none: every topic
    owner: str | None = None  # the name of the token; None: tokens are not configured

    def may(self, permission: str, topic: str | None = None) -> bool:
        """Whether the caller has this permission, for this topic or for any."""
        return permission in self.permissions and (
            topic is None
            or not self.patterns
            or any(pattern_matches(pattern, topic) for pattern in self.patterns)
        )

    def need(self, permission: str, topic: str | None = None) -> None:
        """RefusedError unless the caller has this permission."""
        if not self.may(permission, topic):
            raise RefusedError(errors.BULK_FORBIDDEN, name=self.name, right=permission)


def digest(token: str) -> bytes:
    """The stored and compared form of a token; its length does not depend on the token's."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: Path) -> list[tuple[bytes, Caller]]:
    """The tokens of a file. OSError; TokenFileError."""
    found = []
    for number, line in enumerate(path.read_text("utf-8", "surrogateescape").splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) < 3:
            raise TokenFileError(f"{path}:{number}: expected NAME TOKEN RIGHTS [PATTERN ...]")
        name, token, permissions, *patterns = fields
        if not PERMISSIONS.issuperset(permissions.split(",")):
            # Without the word: in a file in the format of the console it is the token.
            raise TokenFileError(
                f"{path}:{number}: unknown right; expected NAME TOKEN RIGHTS [PATTERN ...], "
                f"where RIGHTS are of {READ}, {WRITE}, {HOLD}"
            )
        for pattern in patterns:
            try:
                check_pattern(pattern)
            except ValueError as problem:
                raise TokenFileError(f"{path}:{number}: {problem}") from None
        caller = Caller(name, frozenset(permissions.split(",")), tuple(patterns), name)
        found.append((digest(token), caller))
    return found


class Access:
    """The tokens in force."""

    def __init__(self, path: Path | None) -> None:
        """`path`: the token file; None: no token is required. OSError, TokenFileError."""
        self.path = path
        self.tokens = [] if path is None else read_tokens(path)

    def reload(self) -> None:
        """Read the file again; after OSError and TokenFileError the old tokens are used."""
        if self.path is not None:
            self.tokens = read_tokens(self.path)

    def caller(self, authorization: str | None, peer: str) -> Caller:
        """The caller whose token an Authorization header has; without tokens its name is the
        address `peer`. RefusedError."""
        if self.path is None:
            return Caller(peer)
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RefusedError(errors.BULK_NO_TOKEN)
        import hmac

        presented, found = digest(token.strip()), None
        for known, caller in self.tokens:  # always all, so that the time does not depend on which
            if hmac.compare_digest(known, presented):
                found = caller
        if found is None:
            raise RefusedError(errors.BULK_BAD_TOKEN)
        return found


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of the broker in responses."""

    name: str
    broker_id: str
    partition: int

    def page(self) -> dict[str, Any]:
        """Its fields in responses."""
        return {"broker": self.name, "broker_id": self.broker_id, "partition": self.partition}


class IdentityError(ValueError):
    """The identity file is unreadable. A new identity would invalidate all stored offsets."""


def identity(folder: Path, name: str, partition: int | None) -> Identity:
    """The identity in the folder, or a new one, which is stored. `partition` replaces the stored
    number. IdentityError: the file cannot be read."""
    path = folder / IDENTITY
    try:
        stored = _read(path)
    except FileNotFoundError:
        stored = None
    except OSError as problem:
        raise IdentityError(str(problem)) from problem
    found = dict(stored or {"broker_id": os.urandom(16).hex(), "partition": 0})
    if partition is not None:
        found["partition"] = partition
    if found != stored:
        try:
            save(path, orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as problem:  # a full disk must not keep the broker from starting
            log.warning("%s cannot be stored, the next start has another id: %s", path, problem)
    return Identity(name or found["broker_id"], found["broker_id"], found["partition"])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(unsealed(path.read_bytes()))
        if re.fullmatch("[0-9a-f]{32}", found["broker_id"]) and (
            0 <= int(found["partition"]) <= limits.BULK_PARTITION_MAX
        ):
            return {"broker_id": found["broker_id"], "partition": int(found["partition"])}
    except (ValueError, KeyError, TypeError):
        pass
    raise IdentityError(f"{path}: invalid identity")
