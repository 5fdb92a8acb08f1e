"""The configuration section of the bulk API.

It is separate so that the configuration can import it without the API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.base import settings as kinds
from broker.base.settings import Address, is_loopback
from broker.base.values import dataclass
from broker.bulk import limits

if TYPE_CHECKING:
    from collections.abc import Iterator


# In the data folder. They are also used without a listener: readers hold records, and commits are
# finished.
BULK_FOLDER: Final = "bulk"
STAGED_FOLDER: Final = "staged"


@dataclass(frozen=True)
class BulkConfig:
    """[bulk]: the HTTP listener for pipelines."""

    listen: Address | None = kinds.listen_setting(limits.BULK_PORT, flag="--bulk")
    tls_cert: str = kinds.file_setting()
    tls_key: str = kinds.file_setting()
    tls_client_ca: str = kinds.file_setting()  # empty: clients need no certificate
    token_file: str = kinds.file_setting()  # empty: no token is required
    allow_anonymous: bool = kinds.setting(kinds.flag(), False)
    partition: int = kinds.setting(kinds.number(-1, limits.BULK_PARTITION_MAX), -1)

    @property
    def reads_files(self) -> bool:
        """Whether it names files that are read when the server starts."""
        return bool(self.token_file or self.tls_cert)

    def conflicts(self, _config: object) -> Iterator[kinds.Conflict]:
        """Errors of values that exclude each other."""
        if bool(self.tls_cert) != bool(self.tls_key):
            reason = "a certificate needs its key: give both bulk.tls_cert and bulk.tls_key"
            yield kinds.conflict("bulk.tls_cert", "bulk.tls_key", reason)
        if self.tls_client_ca and not self.tls_cert:
            reason = "needs a certificate: give bulk.tls_cert and bulk.tls_key"
            yield kinds.conflict("bulk.tls_client_ca", "bulk.tls_cert", reason)
        if self.allow_anonymous and self.token_file:
            reason = "a caller needs a token if there is a token file: give one of the two"
            yield kinds.conflict("bulk.allow_anonymous", "bulk.token_file", reason)
        if self.listen is None or is_loopback(self.listen.host):
            return
        if not self.token_file and not self.allow_anonymous:
            reason = (
                f"{self.listen} can be reached from other machines, which may then read every "
                "topic: set bulk.token_file, or bulk.allow_anonymous = true"
            )
            yield kinds.conflict("bulk.listen", "bulk.token_file", reason)
