"""Where the monitoring pages are listened for: HTTP, HTTPS, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.net.http.pages import Pages
from broker.protocols.nats.monitoring.http import MonitorHttp

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from broker.net.http.guard import HttpSettings
    from broker.protocols.nats.monitoring.http import Handler
    from broker.protocols.nats.monitoring.pages import MonitorPages
    from broker.protocols.nats.settings import Settings


class MonitorDoor:
    """The sockets of one server's pages."""

    def __init__(self, pages: MonitorPages, more: Mapping[str, Handler] | None = None) -> None:
        """`more`: further paths."""
        self.pages = pages
        self.more = more
        self.http: HttpSettings | None = None  # set before `open`; None: the defaults
        self.ports: dict[str, tuple[str, int]] = {}  # monitor; monitor_https if both are open
        self._plain: Pages | None = None
        self._secure: Pages | None = None

    async def open(self, settings: Settings, context: ssl.SSLContext | None = None) -> None:
        """Listen where the settings say; OSError when an address is taken or not ours.

        `context` is for HTTPS and asks for no certificate.
        """
        login = None
        if settings.monitor_user or settings.monitor_password:
            login = (settings.monitor_user, settings.monitor_password)
        handlers = MonitorHttp(self.pages, self.more, base=settings.http_base_path, login=login)
        # Without a login pages are for everybody, those of other sites too, as nats-server has it.
        public = login is None

        def pages(context: ssl.SSLContext | None) -> Pages:
            return Pages(handlers.app(), context, self.http, public=public)

        try:
            if settings.http is not None:
                self._plain = pages(None)
                await self._plain.open(settings.http)
                self.ports["monitor"] = self._plain.address
            if settings.https is not None:
                assert context is not None
                self._secure = pages(context)
                await self._secure.open(settings.https)
                name = "monitor" if settings.http is None else "monitor_https"
                self.ports[name] = self._secure.address
        except OSError:
            await self.close()
            raise

    async def use(self, context: ssl.SSLContext) -> None:
        """Certificates were read again."""
        if self._secure is not None:
            await self._secure.use(context)

    async def close(self) -> None:
        """Stop listening, end the connections."""
        for door in (self._plain, self._secure):
            if door is not None:
                await door.close()
        self._plain = self._secure = None
        self.ports.clear()
