"""The configuration section of the console.

It is separate so that the configuration can import it without the console.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base import settings as kinds
from broker.base.settings import Address, is_loopback
from broker.base.values import dataclass
from broker.console import limits

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class ConsoleConfig:
    """[console]: the web console and its API."""

    listen: Address | None = kinds.listen_setting(limits.CONSOLE_PORT, flag="--console")
    tls_cert: str = kinds.file_setting()
    tls_key: str = kinds.file_setting()
    users_file: str = kinds.file_setting()  # empty: no login is required
    token_file: str = kinds.file_setting()
    read_only: bool = kinds.setting(kinds.flag(), False)
    session_ttl_ns: int = kinds.setting(
        kinds.duration(limits.SESSION_TTL_MIN, limits.SESSION_TTL_MAX), limits.SESSION_TTL
    )
    allow_anonymous: bool = kinds.setting(kinds.flag(), False)
    allow_plain: bool = kinds.setting(kinds.flag(), False)

    @property
    def reads_files(self) -> bool:
        """Whether it names files that are read when the server starts."""
        return bool(self.users_file or self.token_file or self.tls_cert)

    def conflicts(self, _config: object) -> Iterator[kinds.Conflict]:
        """Errors of values that exclude each other."""
        if bool(self.tls_cert) != bool(self.tls_key):
            reason = "a certificate needs its key: give both console.tls_cert and console.tls_key"
            yield kinds.conflict("console.tls_cert", "console.tls_key", reason)
        known = bool(self.users_file or self.token_file)
        if self.allow_anonymous and known:
            reason = "a caller needs a login if there are users: give one of the two"
            yield kinds.conflict("console.allow_anonymous", "console.users_file", reason)
        if self.listen is None or is_loopback(self.listen.host):
            return
        if not known and not self.allow_anonymous:
            reason = (
                f"{self.listen} can be reached from other machines, which may then read and "
                "delete every topic: set console.users_file or console.token_file, or "
                "console.allow_anonymous = true"
            )
            yield kinds.conflict("console.listen", "console.users_file", reason)
        if known and not self.tls_cert and not self.allow_plain:
            reason = (
                f"{self.listen} can be reached from other machines, and passwords would pass "
                "unencrypted: set console.tls_cert and console.tls_key, or "
                "console.allow_plain = true if a proxy encrypts"
            )
            yield kinds.conflict("console.listen", "console.tls_cert", reason)
