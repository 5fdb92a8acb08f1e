"""One run of a NATS server with JetStream: its engine, its folder, the order of its start."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from broker.cli.dropin.environment import from_environment
from broker.cli.dropin.nats_server.run import Run
from broker.config.config import Config
from broker.engine.config import StorageConfig
from broker.protocols.config import BridgeConfig
from broker.protocols.jetstream.config import JetStreamConfig
from broker.protocols.jetstream.service import JetStreamService
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.service import NatsService
from broker.server.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.base.service import Handler, Service
    from broker.cli.dropin.nats_server.log import Log
    from broker.protocols.host import Host
    from broker.protocols.nats.settings import Settings

log = logging.getLogger("broker.nats")

# In store_dir; nats-server's files are in `jetstream` beside it, and stay unchanged.
FOLDER: Final = "twinwire"


def folder_of(settings: Settings) -> Path:
    """The folder for all streams."""
    assert settings.jetstream is not None
    given = settings.jetstream.store_dir
    return Path(given or Path(tempfile.gettempdir()) / "nats") / FOLDER


def config_of(settings: Settings) -> Config:
    """The configuration of the server that runs the service: no other protocol shares messages."""
    nothing = BridgeConfig(
        nsq_to_nats=False, nats_to_nsq=False, stan_to_nats=False, nats_to_stan=False
    )
    jetstream = JetStreamConfig().merged(settings.jetstream)
    given = from_environment()
    return replace(
        given,
        server=replace(given.server, data=str(folder_of(settings))),
        jetstream=jetstream,
        storage=StorageConfig(sync=jetstream.sync),
        bridge=nothing,
    )


class JetStreamRun(Run):
    """A run of a NATS server with JetStream. Streams are open before clients can connect."""

    broker: Server

    def __init__(
        self,
        settings: Settings,
        server_log: Log,
        pages: Callable[[NatsServer], Mapping[str, Handler]],
        **options: Any,
    ) -> None:
        """`pages`: additional pages of the monitoring listener; the rest as in Run."""
        self._pages = pages
        super().__init__(settings, server_log, self._make, **options)

    def _make(self, settings: Settings) -> NatsServer:
        def nats(host: Host) -> Service:
            return NatsService(host, NatsServer(settings, host.runtime, host.router))

        self.broker = Server(config_of(settings), (nats, JetStreamService), log=log)
        server = cast("NatsService", self.broker.service(NatsService)).server
        assert server is not None
        server.monitor.more = lambda: self._pages(server)
        return server

    async def start_server(self) -> None:
        """Open the streams, then the listeners."""
        log.info("Starting JetStream")
        assert self.settings.jetstream is not None
        if not self.settings.jetstream.store_dir:
            log.warning("Temporary storage directory used, data could be lost on system reboot")
        log.info("  Store Directory: %s", folder_of(self.settings))
        await self.broker.open()
        await super().start_server()

    async def stop_server(self) -> None:
        """Stop JetStream, then the NATS server with all connections."""
        server = cast("NatsServer", self.server)
        await server.close()
        await self.broker.stop()
