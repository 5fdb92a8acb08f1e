"""Access to the console: users with passwords, tools with tokens, and their roles.

The users file has a line for each user, `NAME ROLE HASH`, with a bcrypt hash; the token file one
for each token, `NAME ROLE TOKEN`. A role includes those before it: viewer, operator, admin. Blank
lines and those that begin with # are ignored. Logins are kept in memory, so a restart of the broker
ends them. A reload ends the logins of users that were removed or have another password.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.base.units import SECOND
from broker.base.values import dataclass
from broker.console import errors, limits
from broker.console.errors import RefusedError
from broker.protocols.nats.auth.passwords import Busy, Passwords, is_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.console.config import ConsoleConfig

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
ROLES: Final = (VIEWER, OPERATOR, ADMIN)
# Checked for unknown users, so that the time of an answer does not depend on whether a user exists.
_NOBODY: Final = "$2b$10$" + "." * 53


class UsersFileError(ValueError):
    """A file of users or tokens is invalid; the text names the line."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request."""

    user: str | None  # None: not logged in
    role: str | None
    by_token: bool = False  # a tool: pages of other sites cannot send its token
    # The stored form of the password or token that was used, and the key of the login, if any.
    secret: str | bytes = field(default="", repr=False, compare=False)
    login: bytes = field(default=b"", repr=False, compare=False)

    def may(self, role: str | None) -> bool:
        """Whether the caller has this role or a higher one; None: no role is required."""
        if role is None:
            return True
        return self.role is not None and ROLES.index(self.role) >= ROLES.index(role)


@dataclass(slots=True)
class Login:
    """A logged-in user."""

    user: str
    secret: str  # the hash of the password that was used
    expires_ns: int  # monotonic


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(path.read_text("utf-8", "surrogateescape").splitlines(), 1):
        fields = line.split()
        if fields and not fields[0].startswith("#"):
            yield number, fields


def read_file(path: Path, kind: str) -> dict[str, tuple[str, str]]:
    """Name -> role and secret, of a file of users or tokens. OSError; UsersFileError."""
    found: dict[str, tuple[str, str]] = {}
    for number, fields in _lines(path):
        if len(fields) != 3:
            raise UsersFileError(f"{path}:{number}: expected NAME ROLE {kind}")
        name, role, secret = fields
        if role not in ROLES:
            roles = ", ".join(ROLES)
            # Without the word: in a file in the format of the bulk API it is the token.
            expected = f"NAME ROLE {kind}, where ROLE is one of {roles}"
            raise UsersFileError(f"{path}:{number}: unknown role; expected {expected}")
        if kind == "HASH" and not is_hash(secret):
            raise UsersFileError(f"{path}:{number}: expected a bcrypt hash ($2b$...)")
        if name in found:
            raise UsersFileError(f"{path}:{number}: {name} is there twice")
        found[name] = (role, secret)
    return found


def digest(secret: str) -> bytes:
    """The stored and compared form of a token; its length does not depend on the token's."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class Access:
    """The users and tokens in force, and the logins."""

    def __init__(
        self, config: ConsoleConfig, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """OSError, UsersFileError: a file cannot be used."""
        self.config = config
        self.now_ns = now_ns
        self.users: dict[str, tuple[str, str]] = {}
        self.tokens: dict[str, tuple[str, bytes]] = {}
        self._logins: OrderedDict[bytes, Login] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._passwords: Passwords | None = None
        self.reload()

    @property
    def is_open(self) -> bool:
        """Whether no login is required."""
        return not self.config.users_file and not self.config.token_file

    def reload(self) -> None:
        """Read the files again; after OSError and UsersFileError the old ones are used."""
        users, tokens = self.config.users_file, self.config.token_file
        read = read_file(Path(users), "HASH") if users else {}
        presented = read_file(Path(tokens), "TOKEN") if tokens else {}
        self.users = read
        self.tokens = {name: (role, digest(token)) for name, (role, token) in presented.items()}

    # --- callers

    def caller(self, authorization: str | None, cookie: str | None) -> Caller:
        """The caller whose token or cookie a request has. RefusedError: an unknown token."""
        if self.is_open:
            return Caller(None, ADMIN)
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() == "bearer":
                return self._caller_of_token(token.strip())
        key = digest(cookie) if cookie else b""
        login = self._logins.get(key)
        if login is None or login.expires_ns <= self.now_ns():
            return Caller(None, None)
        role, secret = self.users.get(login.user, ("", ""))
        if secret != login.secret:
            return Caller(None, None)
        login.expires_ns = self.now_ns() + self.config.session_ttl_ns
        return Caller(login.user, role, secret=secret, login=key)

    def _caller_of_token(self, token: str) -> Caller:
        presented, found = digest(token), None
        for name, (role, known) in self.tokens.items():  # always all, see bulk/access.py
            if hmac.compare_digest(known, presented):
                found = Caller(name, role, by_token=True, secret=known)
        if found is None:
            raise RefusedError(errors.UNAUTHENTICATED)
        return found

    def is_valid(self, caller: Caller) -> bool:
        """Whether the caller still has its role. A stream checks it repeatedly, because the files
        may change and the user may log out while it is open."""
        if self.is_open:
            return caller.role == ADMIN
        if caller.user is None:
            return False
        if caller.by_token:
            return self.tokens.get(caller.user) == (caller.role, caller.secret)
        if caller.login not in self._logins:
            return False
        return self.users.get(caller.user) == (caller.role, caller.secret)

    # --- logins

    async def login(self, user: str, password: str, client: str) -> tuple[str, Caller]:
        """Check a password. Returns the value of the new cookie and the caller. RefusedError."""
        since_ns, count = self._failures.get(client, (0, 0))
        if self.now_ns() - since_ns > limits.LOGIN_WINDOW:
            since_ns, count = self.now_ns(), 0
        if count >= limits.LOGIN_FAILURES_MAX:
            raise RefusedError(errors.TOO_MANY)
        # Counted before the check, so that concurrent attempts are limited, too.
        self._failures[client] = (since_ns, count + 1)
        self._failures.move_to_end(client)
        while len(self._failures) > limits.LOGIN_CLIENTS_MAX:
            self._failures.popitem(last=False)
        role, stored = self.users.get(user, ("", _NOBODY))
        if self._passwords is None:
            self._passwords = Passwords()
        try:
            matches = await self._passwords.matches(stored, password)
        except Busy:
            raise RefusedError(errors.TOO_MANY) from None
        if not matches or user not in self.users:
            raise RefusedError(errors.BAD_LOGIN)
        self._failures.pop(client, None)
        value = secrets.token_urlsafe(32)
        expires_ns = self.now_ns() + self.config.session_ttl_ns
        self._logins[digest(value)] = Login(user, stored, expires_ns)
        while len(self._logins) > limits.SESSIONS_MAX:
            self._logins.popitem(last=False)
        return value, Caller(user, role)

    def logout(self, cookie: str | None) -> None:
        """End the login of this cookie."""
        if cookie:
            self._logins.pop(digest(cookie), None)

    @property
    def ttl_s(self) -> int:
        """How long a login lasts without a request."""
        return self.config.session_ttl_ns // SECOND

    def close(self) -> None:
        """End the threads that check passwords."""
        if self._passwords is not None:
            self._passwords.close()
