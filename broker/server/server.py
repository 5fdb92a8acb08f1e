"""The server: a data folder, its engine, and the services that use it.

services.py lists the services; broker/base/service.py describes what they do in each step.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from broker.base.lockfile import DataLock
from broker.base.logs import fields
from broker.base.units import SECOND
from broker.engine.engine import Engine
from broker.engine.limits import ROUTER_CACHE_REFS, ROUTER_CACHE_SUBJECTS
from broker.net.listener import Runtime
from broker.protocols.access import APART
from broker.routing.router import Router
from broker.server.engine import (
    LOGS_FOLDER,
    access_of,
    broken_log,
    delivery_events,
    engine_options,
    report,
)
from broker.server.folder import FolderCheck
from broker.server.memory import FreeMemory
from broker.server.services import SERVICES
from broker.server.stats import engine_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.base.metrics import Block
    from broker.base.service import Handler, ListenerStats, Service
    from broker.config.config import Config
    from broker.config.load import Given
    from broker.engine.cursor.events import EventLog
    from broker.protocols.host import Host

Section = TypeVar("Section")
Other = TypeVar("Other", bound="Service")


class Server:
    """One broker in this process: its data folder, its engine, its services. It is their Host."""

    def __init__(
        self,
        config: Config,
        factories: Iterable[Callable[[Host], Service | None]] = SERVICES,
        *,
        in_memory: bool = False,
        log: logging.Logger | None = None,
        given: Given | None = None,
    ) -> None:
        """`in_memory`: without a data folder. `log`: for reports of the recovery. `given`: where
        the settings come from."""
        self.config = config
        self._given = given or {}
        self.name = config.server.name
        self.data = None if in_memory else Path(config.server.data)
        self.logs = None if self.data is None else self.data / LOGS_FOLDER
        self.access = access_of(config)
        self.http = config.http
        self.router = Router(ROUTER_CACHE_SUBJECTS, ROUTER_CACHE_REFS)
        self.ports: dict[str, tuple[str, int]] = {}
        self.log = log or logging.getLogger("broker.server")
        self._runtime: Runtime | None = None
        self._lock: DataLock | None = None
        self._folder: FolderCheck | None = None
        self._engine: Engine | None = None
        self._events: EventLog | None = None
        self._memory: FreeMemory | None = None
        made = [factory(self) for factory in factories]
        self.services: list[Service] = [service for service in made if service is not None]

    # --- for services

    @property
    def runtime(self) -> Runtime:
        """The state that all connections of this loop share; only while the loop runs."""
        if self._runtime is None:
            self._runtime = Runtime(self.config.server.busy_poll_ns)
        return self._runtime

    @property
    def engine(self) -> Engine:
        """The engine; only after start."""
        assert self._engine is not None
        return self._engine

    def section(self, kind: type[Section]) -> Section:
        """The section of the configuration that is of this class."""
        return self.config.section(kind)

    def service(self, kind: type[Other]) -> Other | None:
        """The service of this class; None if it is disabled."""
        return next((each for each in self.services if isinstance(each, kind)), None)

    def health(self) -> str | None:
        """The first problem; None: no problem."""
        return None if self._engine is None else broken_log(self._engine)

    def problems(self) -> list[tuple[str, str, str]]:
        """Kind, name and reason of everything that is wrong with the data folder."""
        known = [] if self._engine is None else self._engine.shared.health.problems()
        found = [(problem.kind, problem.name, problem.reason) for problem in known]
        return found + [problem for each in self.services for problem in each.problems()]

    def pages(self) -> dict[str, Handler]:
        """The pages that services add to the monitoring listener."""
        return {path: page for each in self.services for path, page in each.pages().items()}

    def stats(self) -> list[ListenerStats]:
        """The counters of all listeners at this moment."""
        return [row for each in self.services for row in each.stats()]

    def metrics(self) -> list[Block]:
        """All current series; those of the server only after its engine is created."""
        own: list[Block] = []
        if self._engine is not None:
            from broker.server.exposition import server_blocks

            own = server_blocks(
                self.stats(),
                engine_stats(self._engine, self._events),
                self.runtime.busy_poll_seconds,
            )
        return own + [block for each in self.services for block in each.metrics()]

    def settings_in_force(self) -> Iterable[tuple[str, str, str, str]]:
        """Section, key, value and origin of each setting."""
        from broker.config.effective import entries

        return entries(self._given)

    # --- life

    async def start(self) -> None:
        """Lock the data folder, recover it, open every listener. OSError and the like: nothing is
        left open."""
        try:
            await self.open()
        except BaseException:
            await self._give_up()
            raise

    async def open(self) -> None:
        """Start; after an error the caller has to call `stop`."""
        runtime = self.runtime
        if self.data is not None:
            self._lock = DataLock(self.data)
        self._engine = Engine(
            runtime.turn,
            self.router,
            None if self.logs is None else str(self.logs),
            engine_options(self.config),
            self._sync_for,
            report,
            self._retention_for,
        )
        for service in self.services:
            service.prepare()
        start_ns = time.monotonic_ns()
        self._engine.open(runtime.loop)
        self._log_opened(self._engine, time.monotonic_ns() - start_ns)
        for problem in self._engine.problems:
            self.log.warning("recovered: %s", problem)
        for service in self.services:
            await service.recover()
        self._events = delivery_events(self._engine, self.config)
        for service in self.services:
            await service.start()
            self.ports |= service.ports
        for service in self.services:
            await service.listen()
            self.ports |= service.ports
        self._memory = FreeMemory(runtime.loop)
        if self._lock is not None:
            health = self._engine.shared.health
            self._folder = FolderCheck(runtime.loop, self._lock, health, self.log)

    def _log_opened(self, engine: Engine, took_ns: int) -> None:
        """Log what a start found in the data folder, if anything."""
        logs = engine.all_logs()
        if logs:
            found = fields(
                logs=len(logs),
                records=sum(log.visible - log.first_seq for log in logs),
                quarantined=len(engine.quarantined),
                last_stop="unclean" if self._lock is not None and self._lock.unclean else "clean",
                seconds=round(took_ns / SECOND, 3),
            )
            self.log.info("data folder is open", extra=found)

    async def reload(self) -> bool:
        """Let each service reload its files; False: not all have. An error is logged and changes
        nothing."""
        complete = True
        for service in self.services:
            try:
                await service.reload()
            except Exception:  # the others' files count all the same
                complete = False
                self.log.exception("%s was not reloaded", service.name)
        return complete

    async def stop(self) -> None:
        """Accept no new clients, answer accepted requests, write and sync everything, close."""
        for service in self.services:
            await service.drain()
        if self._engine is not None:
            await self._engine.settle()
        for service in self.services:
            await service.disconnect()
        await self._give_up()

    async def _give_up(self) -> None:
        if self._folder is not None:
            self._folder.stop()
            self._folder = None
        if self._memory is not None:
            self._memory.stop()
            self._memory = None
        for service in reversed(self.services):
            await service.stop()
        if self._events is not None:
            self._events.end()
            self._events = None
        if self._engine is not None:
            await self._engine.close()
            self._engine = None
        if self._runtime is not None:
            self._runtime.stop()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # --- for the engine

    def _sync_for(self, name: str) -> str | float:
        """When appends to a log are synced, in the engine's words."""
        sync = self.config.storage.for_topic(name.removeprefix(APART)).sync
        assert sync is not None
        return sync.policy

    def _retention_for(self, name: str) -> tuple[int, int, int, int, int] | None:
        """The limits of a log, in the engine's form; None = until every reader has finished."""
        topic = self.config.storage.for_topic(name.removeprefix(APART))
        kept = (topic.max_age_ns, topic.max_bytes, topic.max_msgs, topic.keep_ns, topic.keep_bytes)
        return kept if any(kept) else self.config.events.kept(name)
