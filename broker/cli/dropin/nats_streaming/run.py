"""One run of a NATS server with the streaming service: its log lines, its order of starts."""

from __future__ import annotations

import logging
import platform
import signal
from typing import TYPE_CHECKING, Any, cast

from broker.base.metrics import Position
from broker.cli.dropin import errors
from broker.cli.dropin.environment import from_environment
from broker.cli.dropin.nats_server.log import STREAMING
from broker.cli.dropin.nats_server.run import Run
from broker.cli.dropin.nats_streaming.flags import PROGRAM
from broker.cli.dropin.nats_streaming.settings import config_of, limit_lines
from broker.cli.serve import lasting_memory
from broker.protocols.nats.server import NatsServer
from broker.protocols.nats.service import NatsService
from broker.protocols.stan import limits as stan_limits
from broker.protocols.stan.service import StanService
from broker.server import limits as server_limits
from broker.server.metrics import MetricsService
from broker.server.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.base.service import Service
    from broker.cli.dropin.nats_server.log import Log
    from broker.cli.dropin.nats_streaming.settings import Asked
    from broker.protocols.host import Host
    from broker.protocols.nats.settings import Settings

log = logging.getLogger(STREAMING)


class StreamingRun(Run):
    """A run of a NATS server with the streaming service. As in the original, it listens before it
    recovers the store. `server` is the NATS server, `broker` runs both."""

    terminated = server_limits.EXIT_SIGNAL_BASE + signal.SIGTERM
    signal_level = logging.DEBUG
    shows_digest = False
    server: NatsServer
    broker: Server
    stan: StanService

    def __init__(self, asked: Asked, server_log: Log, again: Any) -> None:
        self.asked = asked
        super().__init__(
            asked.settings,
            server_log,
            self._make,
            file=asked.file,
            read_again=again,
            program=PROGRAM,
            remarks=asked.remarks,
        )

    def _make(self, settings: Settings) -> NatsServer:
        def nats(host: Host) -> Service:
            return NatsService(host, NatsServer(settings, host.runtime, host.router))

        def metrics(host: Host) -> Service:
            return MetricsService(host, Position.EXPORTED)

        folder = self.asked.folder
        self.broker = Server(
            config_of(self.asked.stan, folder, from_environment()),
            (nats, lambda host: StanService(host, alone=True), metrics),
            in_memory=folder is None,
            log=log,
        )
        self.stan = cast("StanService", self.broker.service(StanService))
        server = cast("NatsService", self.broker.service(NatsService)).server
        assert server is not None
        server.monitor.more = self.broker.pages
        return server

    def _first_lines(self) -> Iterator[str]:
        cluster = self.asked.stan.cluster_id
        yield f"STREAM: Starting {PROGRAM}[{cluster}] version {stan_limits.STAN_VERSION}"
        yield f"STREAM: ServerID: {self.stan.server_id}"
        yield f"STREAM: Python version: {platform.python_version()}"
        if not self.asked.problem:
            yield from super()._first_lines()

    def early_problem(self) -> str:
        """The error that is found only when the server starts."""
        if self.asked.problem:
            return errors.STAN_START.format(self.asked.problem)
        return super().early_problem()

    async def when_ready(self) -> str:
        """Start the service; return the reason if it cannot start."""
        if not self.asked.stan.account:
            return errors.STAN_START.format(errors.STAN_LOGIN)
        log.info("Recovering the state...")
        try:
            with lasting_memory():
                await self.broker.open()
        except Exception as error:  # any error: the operator gets one line
            log.debug("not started", exc_info=error)
            return errors.STAN_START.format(error)
        assert self.stan.streaming is not None
        found = len(self.stan.streaming.channels)
        log.info("%s", f"Recovered {found} channel(s)" if found else "No recovered state")
        log.info("Message store is %s", self.asked.stan.store.upper())
        if self.asked.folder is not None:
            log.info("Store location: %s", self.asked.folder)
        for line in limit_lines(self.asked.stan):
            log.info("%s", line)
        log.info("Streaming Server is ready")
        return ""

    async def stop_server(self) -> None:
        """Stop the service, if it was started, then the NATS server."""
        await self.broker.stop()

    async def _end(self) -> int:
        log.info("Shutting down.")
        return await super()._end()
