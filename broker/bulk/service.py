"""The bulk door in a server: what it is told, and its listener."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.bulk.access import Access, TokenFileError
from broker.bulk.app import BulkDoor
from broker.bulk.identity import Identity, IdentityError, identity
from broker.net.http.guard import HttpSettings
from broker.net.http.pages import Pages
from broker.net.openssl import TlsError
from broker.net.tls import Certificates, TlsFiles
from broker.runtime.vfs import sync_file_system
from broker.server.stats import BulkStats, LagStats

if TYPE_CHECKING:
    from broker.bulk.write.service import Writes
    from broker.config.load import Config
    from broker.engine.engine import Engine
    from broker.net.tls import ClientCertificate

log = logging.getLogger("broker.bulk")

BULK_FOLDER: Final = "bulk"
READERS_FOLDER: Final = "readers"
IDENTITY_PROBLEM: Final = "bulk API"  # a kind of problem on /healthz


class Bulk:
    """The door with its listener and what it reads from files."""

    def __init__(self, config: Config, engine: Engine) -> None:
        """OSError, TokenFileError and TlsError say what cannot be used."""
        bulk = config.bulk
        self.config = bulk
        self.http = HttpSettings(**dataclasses.asdict(config.http))
        partition = bulk.partition if bulk.partition >= 0 else None
        folder = Path(config.server.data) / BULK_FOLDER
        self.closed = False  # nobody is served: places would be taken for another broker's
        try:
            who = identity(folder, config.server.name, partition)
        except IdentityError as problem:
            log.error("the bulk API stays closed: %s", problem)
            engine.shared.health.add(IDENTITY_PROBLEM, config.server.name, str(problem))
            self.closed, who = True, Identity(config.server.name, "", 0)
        self.access = Access(Path(bulk.token_file) if bulk.token_file else None)
        self.certificates: Certificates | None = None
        if bulk.tls_cert:
            client: ClientCertificate = "require-verify" if bulk.tls_client_ca else ""
            files = TlsFiles(bulk.tls_cert, bulk.tls_key, bulk.tls_client_ca, client)
            self.certificates = Certificates(files)
        self.door = BulkDoor(engine, who, self.access, folder / READERS_FOLDER)
        self._pages: Pages | None = None
        self._writes: Writes | None = None

    def take(self, writes: Writes) -> None:
        """Serve those who write as well; before `open`."""
        self._writes = writes
        self.door.more_routes += writes.routes(self.door)

    async def open(self) -> tuple[str, int]:
        """Listen; the address. ListenError; OSError: the disk takes nothing."""
        assert self.config.listen is not None
        await self._settle()
        self.door.readers.begin()
        context = self.certificates.context if self.certificates is not None else None
        self._pages = Pages(self.door.app(), context, self.http)
        await self._pages.open(self.config.listen)
        return self._pages.address

    async def _settle(self) -> None:
        """What was found at start is on the disk before anyone hears of it.

        A process that was killed has left records that only memory holds. Readers keep places
        behind them; after a power cut the same seqs would be given to other records.
        """
        root = self.door.engine.shared.root
        if root is None or not self.door.engine.logs:
            return
        error = await self.door.in_thread(sync_file_system, os.fsencode(root))
        if error:
            raise OSError(error, os.strerror(error), root)

    async def reload(self) -> None:
        """Read tokens and certificates again; what is wrong changes nothing and is told."""
        if self.access.path is not None:
            try:
                self.access.reload()
            except (OSError, TokenFileError) as problem:
                log.error("tokens stay as they were: %s", problem)
            else:
                log.info("tokens were read again")
        if self.certificates is None or self._pages is None:
            return
        try:
            self.certificates.reload()
        except TlsError as problem:
            log.error("certificates stay as they were: %s", problem)
            return
        await self._pages.use(self.certificates.context)
        log.info("certificates were read again")

    def stats(self) -> BulkStats:
        """Its counters at this moment."""
        door, pages, traffic = self.door, self.door.range_pages, self.door.traffic
        found = BulkStats(
            ranges=pages.ranges,
            records=pages.records,
            sent_bytes=pages.bytes,
            refused=traffic.refused,
            cut_off=pages.cut_off,
            damaged_bytes=pages.damaged,
            under_way=traffic.under_way,
            waiting=traffic.waiting,
            expired=door.readers.expired,
            lags=[LagStats(*lag) for lag in door.reader_pages.lags()],
        )
        if self._writes is not None:
            self._writes.count(found)
        return found

    async def stop(self) -> None:
        """Stop listening, refuse what is asked from now on, let requests under way end."""
        self.door.stopping = True
        if self._pages is not None:
            await self._pages.close()
            self._pages = None

    async def close(self) -> None:
        """End what is under way, give the threads back."""
        await self.stop()
        await self.door.close()
