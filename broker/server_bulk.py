"""The bulk door in a server: what it is told, and its listener."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.bulk.access import Access, TokenFileError
from broker.bulk.door import BulkDoor
from broker.bulk.identity import identity
from broker.net.pages import Pages
from broker.net.tls import Certificates, TlsFiles
from broker.openssl import TlsError

if TYPE_CHECKING:
    from broker.bulk.writes import Writes
    from broker.config import Config
    from broker.core.engine import Engine
    from broker.net.tls import ClientCertificate

log = logging.getLogger("broker.bulk")

BULK_FOLDER: Final = "bulk"


class Bulk:
    """The door with its listener and what it reads from files."""

    def __init__(self, config: Config, engine: Engine, writes: Writes) -> None:
        """OSError, TokenFileError, TlsError and IdentityError say what cannot be used."""
        bulk = config.bulk
        self.config = bulk
        partition = bulk.partition if bulk.partition >= 0 else None
        who = identity(Path(config.server.data) / BULK_FOLDER, config.server.name, partition)
        self.access = Access(Path(bulk.token_file) if bulk.token_file else None)
        self.certificates: Certificates | None = None
        if bulk.tls_cert:
            client: ClientCertificate = "require-verify" if bulk.tls_client_ca else ""
            files = TlsFiles(bulk.tls_cert, bulk.tls_key, bulk.tls_client_ca, client)
            self.certificates = Certificates(files)
        self.door = BulkDoor(engine, who, self.access)
        self.door.more_routes += writes.routes(self.door)
        self._pages: Pages | None = None

    async def open(self) -> tuple[str, int]:
        """Listen; the address. ListenError."""
        assert self.config.listen is not None
        context = self.certificates.context if self.certificates is not None else None
        self._pages = Pages(self.door.app(), context)
        await self._pages.open(self.config.listen)
        return self._pages.address

    async def reload(self) -> None:
        """Read tokens and certificates again; what is wrong changes nothing and is told."""
        try:
            self.access.reload()
        except (OSError, TokenFileError) as problem:
            log.error("tokens stay as they were: %s", problem)
        if self.certificates is None or self._pages is None:
            return
        try:
            self.certificates.reload()
        except TlsError as problem:
            log.error("certificates stay as they were: %s", problem)
            return
        await self._pages.use(self.certificates.context)

    async def close(self) -> None:
        """Stop listening, end what is under way, give the threads back."""
        if self._pages is not None:
            await self._pages.close()
            self._pages = None
        self.door.close()
