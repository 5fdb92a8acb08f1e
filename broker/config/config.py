"""The sections of the configuration, each a frozen dataclass with one attribute per key.

Attributes have the names of the keys; durations end in _ns because they are nanoseconds, sizes are
bytes.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from broker.base import settings as kinds
from broker.base import units
from broker.base.values import dataclass
from broker.bulk.config import BulkConfig
from broker.console.config import ConsoleConfig
from broker.engine.config import EventsConfig, StorageConfig
from broker.net import limits
from broker.net.http.config import HttpConfig
from broker.protocols.config import BridgeConfig
from broker.protocols.jetstream.config import JetStreamConfig
from broker.protocols.nats.settings import MonitorConfig, Settings
from broker.protocols.nsq.config import NsqConfig
from broker.protocols.nsq.lookup.config import LookupConfig
from broker.protocols.stan.config import StanConfig
from broker.telemetry.config import TelemetryConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

Section = TypeVar("Section")


@dataclass(frozen=True)
class ServerConfig:
    """[server]: the process as a whole."""

    name: str = kinds.setting(kinds.text(), "")  # empty: the server's id
    data: str = kinds.setting(kinds.text(kinds.not_empty), "./data", flag="--data")
    # how long the loop looks for the next event before it sleeps; 0 = it sleeps at once
    busy_poll_ns: int = kinds.setting(
        kinds.duration(units.US, limits.BUSY_POLL_MAX, off=True), limits.BUSY_POLL
    )


@dataclass(frozen=True)
class LogConfig:
    """[log]: the log on standard error."""

    level: str = kinds.setting(
        kinds.choice("debug", "info", "warning", "error"), "info", flag="--log-level"
    )
    format: str = kinds.setting(kinds.choice("text", "json"), "text", flag="--log-format")
    utc: bool = kinds.setting(kinds.flag(), False)


@dataclass(frozen=True)
class Config:
    """The whole configuration, one attribute per section."""

    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    nats: Settings = Settings()
    monitor: MonitorConfig = MonitorConfig()
    http: HttpConfig = HttpConfig()
    nsq: NsqConfig = NsqConfig()
    nsqlookupd: LookupConfig = LookupConfig()
    stan: StanConfig = StanConfig()
    jetstream: JetStreamConfig = JetStreamConfig()
    storage: StorageConfig = StorageConfig()
    bridge: BridgeConfig = BridgeConfig()
    bulk: BulkConfig = BulkConfig()
    console: ConsoleConfig = ConsoleConfig()
    events: EventsConfig = EventsConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    def sections(self) -> Iterator[tuple[str, Any]]:
        """Each section with its name."""
        for each in fields(self):
            yield each.name, getattr(self, each.name)

    @property
    def reads_files(self) -> bool:
        """Whether a section names files that are read when the server starts: only then is it
        known whether they are valid."""
        return any(getattr(section, "reads_files", False) for _, section in self.sections())

    @property
    def name(self) -> str:
        """The name of the server; empty: its id."""
        return self.server.name

    def section(self, kind: type[Section]) -> Section:
        """The section of this class."""
        return next(section for _, section in self.sections() if type(section) is kind)
