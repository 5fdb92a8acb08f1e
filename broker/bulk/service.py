"""The bulk API as a service of the broker: its listener, its start and its end.

Most brokers have no pipeline. Unless the API was used before with this data folder, only this
module of it is imported before the first client connects.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.base.service import Service
from broker.bulk.config import BULK_FOLDER, STAGED_FOLDER, BulkConfig
from broker.net.http.pages import Pages
from broker.net.tls import Certificates, TlsFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from broker.base.metrics import Block
    from broker.bulk.access import Access
    from broker.bulk.bulk import Bulk
    from broker.bulk.read.readers import Readers
    from broker.bulk.stats import BulkStats
    from broker.bulk.write.service import Writes
    from broker.net.tls import ClientCertificate
    from broker.protocols.host import Host

log = logging.getLogger("broker.bulk")
PROBLEM: Final = "bulk API"  # a kind of problem on /healthz
_APP_MODULES: Final = (
    *("broker.bulk.app", "broker.bulk.bulk"),
    *("broker.bulk.write.handlers", "broker.bulk.write.service"),
)


class BulkService(Service):
    """The bulk API with its listener. Without a listener, registered readers still hold their
    records, and commits that have begun are still finished."""

    name = "bulk"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.config = host.section(BulkConfig)
        self.bulk: Bulk | None = None  # with a listener: once the API is in use
        self.writes: Writes | None = None  # once it is in use
        self._access: Access | None = None
        self._certificates: Certificates | None = None
        self._pages: Pages | None = None
        self._address: tuple[str, int] | None = None
        self._stays_closed = False

    def prepare(self) -> None:
        """Find the commits that an earlier process has begun."""
        assert self.host.data is not None
        if any((self.host.data / name).exists() for name in (BULK_FOLDER, STAGED_FOLDER)):
            self.writes = self._create_writes()

    def _create_writes(self) -> Writes:
        from broker.bulk.write.service import Writes

        assert self.host.data is not None
        assert self.host.logs is not None
        writes = Writes(self.host.data, self.host.logs)
        writes.find_intents()
        return writes

    async def recover(self) -> None:
        """Hold records for readers before retention can drop them, and finish commits."""
        if self.writes is None:
            return
        if self.config.listen is not None:
            from broker.bulk.access import Identity, IdentityError
            from broker.bulk.bulk import Bulk, own_identity

            try:
                identity = own_identity(self.host)
            except IdentityError as problem:
                # With a new identity, clients would take the offsets for those of another broker.
                self._keep_closed("identity", problem)
                identity = Identity(self.host.name, "", 0)
            self.bulk = Bulk(self.host, identity, self.writes)
            await self.bulk.begin()
            return
        from broker.bulk.bulk import READERS_FOLDER
        from broker.bulk.read.readers import Readers

        # Without a listener no reader can renew itself, so none expires.
        assert self.host.data is not None
        folder = self.host.data / BULK_FOLDER / READERS_FOLDER
        readers = Readers(self.host.engine, folder, asyncio.to_thread)
        readers.use_holds(self.writes.holds)
        readers.load()
        await self.writes.start(self.host.engine)

    async def start(self) -> None:
        """Read tokens and certificates. OSError, TokenFileError, TlsError."""
        if self.config.listen is None:
            return
        if self.config.token_file:
            self._access = self._create_access()
        if self.config.tls_cert:
            client: ClientCertificate = "require-verify" if self.config.tls_client_ca else ""
            self._certificates = Certificates(
                TlsFiles(
                    self.config.tls_cert, self.config.tls_key, self.config.tls_client_ca, client
                )
            )

    def _create_access(self) -> Access:
        from broker.bulk.access import Access

        return Access(Path(self.config.token_file) if self.config.token_file else None)

    async def listen(self) -> None:
        """Open the listener, unless the identity or the disk forbids it. ListenError."""
        if self.config.listen is None or self._stays_closed:
            return
        if self.bulk is not None:
            try:
                await self.bulk.open()
            except OSError as problem:  # the disk failed; other services do not need it
                self._keep_closed("disk", problem)
                return
        tls = self._certificates.context if self._certificates is not None else None
        self._pages = Pages(self._application, tls, self.host.http)
        self._pages.prepare = self.begin
        self._pages.modules += _APP_MODULES
        await self._pages.open(self.config.listen)
        self._address = self._pages.address

    def _keep_closed(self, name: str, problem: Exception) -> None:
        self._stays_closed = True
        self.host.engine.shared.health.add(PROBLEM, name, str(problem))
        log.error("the bulk API stays closed: %s", problem)

    async def begin(self) -> None:
        """Create the Bulk for the first client, unless it exists. OSError, IdentityError."""
        if self.bulk is not None:
            return
        health = self.host.engine.shared.health
        try:
            self.bulk = await self._create_bulk()
        except BaseException as problem:
            health.add(PROBLEM, "disk", str(problem))
            raise
        health.remove(PROBLEM, "disk")
        self.writes = self.bulk.writes

    async def _create_bulk(self) -> Bulk:
        from broker.bulk.bulk import Bulk, own_identity

        identity = await asyncio.to_thread(own_identity, self.host)  # it waits for the disk
        bulk = Bulk(self.host, identity, self._create_writes())
        try:
            await bulk.begin()
            await bulk.open()
        except BaseException:
            await bulk.close()
            raise
        return bulk

    @property
    def readers(self) -> Readers | None:
        """The registered readers, once the API is in use."""
        return None if self.bulk is None else self.bulk.readers

    def _application(self) -> web.Application:
        assert self.bulk is not None
        if self._access is None:
            self._access = self._create_access()
        return self.bulk.application(self._access)

    async def drain(self) -> None:
        """Close the listener and let running requests end, which need threads and files. Then
        accept no more commits."""
        if self.bulk is not None:
            self.bulk.refuse()
        if self._pages is not None:
            await self._pages.close()
            self._pages = None
        if self.writes is not None:
            await self.writes.stop()

    async def stop(self) -> None:
        """End running requests, then the threads; close the files."""
        await self.drain()
        if self.bulk is not None:
            await self.bulk.close()
            self.bulk = None
        self.writes = None

    async def reload(self) -> None:
        """Read tokens and certificates again. A file with an error is logged and not used."""
        if self._access is not None and self._access.path is not None:
            from broker.bulk.access import TokenFileError

            try:
                self._access.reload()
            except (OSError, TokenFileError) as problem:
                log.error("tokens not reloaded: %s", problem)
            else:
                log.info("tokens reloaded")
        certificates, pages = self._certificates, self._pages
        if certificates is not None and pages is not None and certificates.reload(log):
            await pages.use(certificates.context)

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """`bulk`, if it listens."""
        return {} if self._address is None else {self.name: self._address}

    def counters(self) -> BulkStats:
        """Its current counters."""
        from broker.bulk.stats import BulkStats

        found = BulkStats()
        if self.bulk is not None:
            self.bulk.count(found)
        return found

    def metrics(self) -> Iterable[Block]:
        """The same for /metrics; nothing while [bulk] has no listener."""
        return [] if self.config.listen is None else [self.counters().block()]
