"""The bulk API as a service of the broker: its files, its listener, its place in a start."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.base.service import Service
from broker.bulk.access import Access, Identity, IdentityError, TokenFileError, identity
from broker.bulk.config import BULK_FOLDER, BulkConfig
from broker.bulk.context import BulkContext
from broker.bulk.read.readers import Readers
from broker.bulk.write.service import Writes
from broker.net.http.pages import Pages
from broker.net.openssl import TlsError
from broker.net.sockets import ListenError
from broker.net.tls import Certificates, TlsFiles
from broker.runtime.vfs import sync_file_system

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from broker.base.metrics import Block
    from broker.bulk.app import BulkApp
    from broker.bulk.stats import BulkStats
    from broker.net.tls import ClientCertificate
    from broker.protocols.host import Host

log = logging.getLogger("broker.bulk")
server_log = logging.getLogger("broker.server")

READERS_FOLDER: Final = "readers"
_APP_MODULES: Final = ("broker.bulk.app", "broker.bulk.write.handlers")
IDENTITY_PROBLEM: Final = "bulk API"  # a kind of problem on /healthz


class Bulk:
    """The HTTP application with its listener, tokens and certificates."""

    def __init__(self, host: Host) -> None:
        """OSError, TokenFileError and TlsError say what cannot be used."""
        assert host.data is not None
        bulk, engine = host.section(BulkConfig), host.engine
        self.config = bulk
        self.http = host.http
        partition = bulk.partition if bulk.partition >= 0 else None
        folder = host.data / BULK_FOLDER
        # The listener stays closed: clients would take our offsets for another broker's.
        self.closed = False
        try:
            who = identity(folder, host.name, partition)
        except IdentityError as problem:
            log.error("the bulk API stays closed: %s", problem)
            engine.shared.health.add(IDENTITY_PROBLEM, host.name, str(problem))
            self.closed, who = True, Identity(host.name, "", 0)
        self.access = Access(Path(bulk.token_file) if bulk.token_file else None)
        self.certificates: Certificates | None = None
        if bulk.tls_cert:
            client: ClientCertificate = "require-verify" if bulk.tls_client_ca else ""
            files = TlsFiles(bulk.tls_cert, bulk.tls_key, bulk.tls_client_ca, client)
            self.certificates = Certificates(files)
        self.context = BulkContext(engine, who)
        # Loaded before retention can drop what they hold.
        self.readers = Readers(engine, folder / READERS_FOLDER, self.context.in_thread)
        self.readers.load()
        self.app: BulkApp | None = None  # made for the first client
        self._listener: Pages | None = None
        self._writes: Writes | None = None

    def add(self, writes: Writes) -> None:
        """Serve the write API too; before `open`."""
        self._writes = writes

    def _application(self) -> web.Application:
        from broker.bulk.app import BulkApp

        more = () if self._writes is None else self._writes.routes(self.context)
        self.app = BulkApp(self.context, self.access, self.readers, more)
        return self.app.build()

    async def open(self) -> tuple[str, int]:
        """Listen; the address. ListenError; OSError: the disk cannot be written."""
        assert self.config.listen is not None
        await self._sync()
        self.readers.begin()
        tls = self.certificates.context if self.certificates is not None else None
        self._listener = Pages(self._application, tls, self.http)
        self._listener.modules += _APP_MODULES
        await self._listener.open(self.config.listen)
        return self._listener.address

    async def _sync(self) -> None:
        """Bring all records that recovery found onto the disk before a client can read them.

        An earlier process that was killed may have written records that are only in the page
        cache. A reader stores an offset after such a record; if a power cut then took it, its seq
        would be given to another record, which the reader would never see.
        """
        context = self.context
        root = context.engine.shared.root
        if root is None or not context.engine.all_logs():
            return
        error = await context.in_thread(sync_file_system, os.fsencode(root))
        if error:
            raise OSError(error, os.strerror(error), root)

    async def reload(self) -> None:
        """Read tokens and certificates again; a file with an error changes nothing and is
        logged."""
        if self.access.path is not None:
            try:
                self.access.reload()
            except (OSError, TokenFileError) as problem:
                log.error("tokens not reloaded: %s", problem)
            else:
                log.info("tokens reloaded")
        if self.certificates is None or self._listener is None:
            return
        try:
            self.certificates.reload()
        except TlsError as problem:
            log.error("certificates not reloaded: %s", problem)
            return
        await self._listener.use(self.certificates.context)
        log.info("certificates reloaded")

    def stats(self) -> BulkStats:
        """Its counters at this moment."""
        from broker.bulk.stats import BulkStats, LagStats

        admission = self.context.admission
        found = BulkStats(
            refused=admission.refused,
            under_way=admission.under_way,
            waiting=admission.waiting,
            expired=self.readers.expired,
            lags=[LagStats(*lag) for lag in self.readers.lags()],
        )
        if self.app is not None:
            self.app.ranges.count(found)
        if self._writes is not None:
            self._writes.count(found)
        return found

    async def stop(self) -> None:
        """Stop listening, refuse new requests, let requests under way end."""
        if self.app is not None:
            self.app.stopping = True
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    async def close(self) -> None:
        """End requests under way, then the threads."""
        await self.stop()
        await self.readers.end()
        self.context.close()


class BulkService(Service):
    """The bulk API with its listener. Without a listener, registered readers still hold their
    records, and commits that have begun are still finished."""

    name = "bulk"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.writes: Writes | None = None
        self.bulk: Bulk | None = None
        self._address: tuple[str, int] | None = None

    def prepare(self) -> None:
        """Find the commits that an earlier process has begun."""
        assert self.host.data is not None
        assert self.host.logs is not None
        self.writes = Writes(self.host.data, self.host.logs)
        self.writes.find_intents()

    async def recover(self) -> None:
        """Hold what readers need, before retention drops anything; finish commits."""
        assert self.writes is not None
        assert self.host.data is not None
        if self.host.section(BulkConfig).listen is not None:
            self.bulk = Bulk(self.host)
            self.bulk.readers.share(self.writes.holds)
        else:
            # Without a listener no reader can renew itself, so none expires.
            folder = self.host.data / BULK_FOLDER / READERS_FOLDER
            holds = Readers(self.host.engine, folder, asyncio.to_thread)
            holds.share(self.writes.holds)
            holds.load()
        await self.writes.start(self.host.engine)
        if self.bulk is not None:
            self.bulk.add(self.writes)

    async def listen(self) -> None:
        """Open the listener, unless the identity or the disk forbids it."""
        if self.bulk is None or self.bulk.closed:
            return
        try:
            self._address = await self.bulk.open()
        except ListenError:
            raise
        except OSError as problem:  # the disk failed; other services do not need it
            self.host.engine.shared.health.add(IDENTITY_PROBLEM, "disk", str(problem))
            server_log.error("the bulk API is not served: %s", problem)

    async def drain(self) -> None:
        """Close the listener and let requests under way end while their threads and files exist;
        then accept no more commits."""
        if self.bulk is not None:
            await self.bulk.stop()
        if self.writes is not None:
            await self.writes.stop()

    async def stop(self) -> None:
        """End requests under way, then the threads; close the files."""
        if self.bulk is not None:
            await self.bulk.close()
            self.bulk = None
        if self.writes is not None:
            await self.writes.stop()
            self.writes = None

    async def reload(self) -> None:
        """Read tokens and certificates again."""
        if self.bulk is not None:
            await self.bulk.reload()

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """`bulk`, if it listens."""
        return {} if self._address is None else {self.name: self._address}

    def metrics(self) -> Iterable[Block]:
        """Its counters; none while [bulk] has no listener."""
        return [] if self.bulk is None else [self.bulk.stats().block()]
