"""The bulk API of one broker, without its listener: identity, readers, writes, application.

`service.py` creates it: at the start if the data folder has readers or commits, else when the first
client connects.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from broker.bulk.access import Identity, identity
from broker.bulk.config import BULK_FOLDER, BulkConfig
from broker.bulk.context import BulkContext
from broker.bulk.read.readers import Readers
from broker.runtime.vfs import sync_file_system

if TYPE_CHECKING:
    from aiohttp import web

    from broker.bulk.access import Access
    from broker.bulk.app import BulkApp
    from broker.bulk.stats import BulkStats
    from broker.bulk.write.service import Writes
    from broker.protocols.host import Host

READERS_FOLDER: Final = "readers"


def own_identity(host: Host) -> Identity:
    """The identity of this broker, which is stored if it is new. IdentityError."""
    assert host.data is not None
    partition = host.section(BulkConfig).partition
    return identity(host.data / BULK_FOLDER, host.name, partition if partition >= 0 else None)


class Bulk:
    """The bulk API of one broker. It can serve clients after `begin` and `open`."""

    def __init__(self, host: Host, identity: Identity, writes: Writes) -> None:
        """`writes`: after its `find_intents`, and before its `start`."""
        assert host.data is not None
        self.context = BulkContext(host.engine, identity)
        # Loaded before retention can drop the records that they hold.
        folder = host.data / BULK_FOLDER / READERS_FOLDER
        self.readers = Readers(host.engine, folder, self.context.in_thread)
        self.readers.use_holds(writes.holds)
        self.readers.load()
        self.writes = writes
        self.app: BulkApp | None = None  # created for the first client

    async def begin(self) -> None:
        """Finish commits that have begun, and accept new ones. OSError."""
        await self.writes.start(self.context.engine)

    async def open(self) -> None:
        """Sync all records before clients read them, and start to expire readers. OSError."""
        await self._sync()
        self.readers.begin()

    def application(self, access: Access) -> web.Application:
        """The application for the first client."""
        from broker.bulk.app import BulkApp

        routes = self.writes.routes(self.context)
        self.app = BulkApp(self.context, access, self.readers, routes)
        return self.app.build()

    async def _sync(self) -> None:
        """Sync all records that recovery found, before a client can read them.

        An earlier process that was killed may have written records that are only in the page
        cache. A reader stores an offset after such a record. If a power cut then removed it, its
        seq would be used for another record, which the reader would never read.
        """
        context = self.context
        root = context.engine.shared.root
        if root is None or not context.engine.all_logs():
            return
        error = await context.in_thread(sync_file_system, os.fsencode(root))
        if error:
            raise OSError(error, os.strerror(error), root)

    def count(self, stats: BulkStats) -> None:
        """Fill in the current counters."""
        from broker.bulk.stats import LagStats

        admission = self.context.admission
        stats.refused = admission.refused
        stats.under_way = admission.active
        stats.waiting = admission.waiting
        stats.expired = self.readers.expired
        stats.lags = [LagStats(*lag) for lag in self.readers.lags()]
        if self.app is not None:
            self.app.ranges.count(stats)
        self.writes.count(stats)

    def refuse(self) -> None:
        """Refuse new requests from now on."""
        if self.app is not None:
            self.app.stopping = True

    async def close(self) -> None:
        """End the threads, after the last request; close the files."""
        await self.readers.end()
        await self.context.close()
        await self.writes.stop()
