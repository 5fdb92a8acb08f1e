"""The console as a service of the broker: its listener, its files, its start and its end.

Only this module of the console is imported before the first client connects.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from broker.base.service import Service
from broker.console.config import ConsoleConfig
from broker.console.recent import RecentLines
from broker.net.http.pages import Pages
from broker.net.sockets import ListenError
from broker.net.tls import Certificates, TlsFiles

if TYPE_CHECKING:
    from aiohttp import web

    from broker.console.access import Access
    from broker.console.app import ConsoleApp
    from broker.console.listing import Listing
    from broker.protocols.host import Host

log = logging.getLogger("broker.console")
_APP_MODULES: Final = ("broker.console.app",)


class ConsoleService(Service):
    """The console of one broker. If its address is in use, that is logged, and the broker starts
    without it."""

    name = "console"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.config = host.section(ConsoleConfig)
        self.access: Access | None = None
        self.app: ConsoleApp | None = None  # created for the first client
        self._certificates: Certificates | None = None
        self._recent: RecentLines | None = None
        self._listing: Listing | None = None
        self._pages: Pages | None = None

    async def start(self) -> None:
        """Read users and certificates. OSError, UsersFileError, TlsError."""
        if self.config.reads_files:
            from broker.console.access import Access

            self.access = Access(self.config)
        if self.config.tls_cert:
            self._certificates = Certificates(TlsFiles(self.config.tls_cert, self.config.tls_key))
        self._recent = RecentLines()
        self._recent.begin()

    async def listen(self) -> None:
        """Open the listener."""
        assert self.config.listen is not None
        tls = self._certificates.context if self._certificates is not None else None
        pages = Pages(self._application, tls, self.host.http)
        pages.modules += _APP_MODULES
        try:
            await pages.open(self.config.listen)
        except ListenError as problem:
            log.error("the console is not served: %s", problem)
            return
        self._pages = pages

    def _application(self) -> web.Application:
        from broker.console.access import Access
        from broker.console.app import ConsoleApp
        from broker.console.context import ConsoleContext
        from broker.console.history import History
        from broker.console.listing import Listing

        assert self._recent is not None
        if self.access is None:
            self.access = Access(self.config)
        self._listing = listing = Listing(self.host.engine)
        history = History(self.host, listing)
        self.app = ConsoleApp(
            ConsoleContext(self.host, self.config, self.access, listing, history, self._recent)
        )
        return self.app.build()

    async def drain(self) -> None:
        """Close the listener and end all streams."""
        if self.app is not None:
            self.app.stop()
        if self._pages is not None:
            await self._pages.close()
            self._pages = None

    async def stop(self) -> None:
        """Stop the listener and the history, and release all objects."""
        await self.drain()
        if self._listing is not None:
            self._listing.close()
            self._listing = None
        if self.access is not None:
            self.access.close()
        if self._recent is not None:
            self._recent.end()
            self._recent = None

    async def reload(self) -> None:
        """Read users, tokens and certificates again. A file with an error is logged and not
        used."""
        if self.access is not None and not self.access.is_open:
            try:
                self.access.reload()
            except (OSError, ValueError) as problem:
                log.error("users not reloaded: %s", problem)
            else:
                if self.app is not None:
                    self.app.streams.recheck()
                log.info("users reloaded")
        certificates, pages = self._certificates, self._pages
        if certificates is not None and pages is not None and certificates.reload(log):
            await pages.use(certificates.context)

    @property
    def ports(self) -> dict[str, tuple[str, int]]:
        """`console`, if it listens."""
        return {} if self._pages is None else {self.name: self._pages.address}
