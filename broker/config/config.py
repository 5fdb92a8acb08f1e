"""The sections of the configuration, each a frozen dataclass with one attribute per key.

Attributes carry the names of the keys; durations end in _ns because they are nanoseconds, sizes
are bytes. Who reads them from where is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.base import settings as kinds
from broker.bulk.config import BulkConfig
from broker.engine.config import EventsConfig, StorageConfig
from broker.net.http.config import HttpConfig
from broker.protocols.nats.config import MonitorConfig, NatsConfig
from broker.protocols.nsq.config import NsqConfig
from broker.protocols.nsq.lookup.config import LookupConfig
from broker.protocols.stan.section import StanConfig


@dataclass(frozen=True)
class ServerConfig:
    """[server]: the process as a whole."""

    name: str = kinds.setting(kinds.text(), "")  # empty: the server's id
    data: str = kinds.setting(kinds.text(), "./data")


@dataclass(frozen=True)
class LogConfig:
    """[log]: what is written to standard error."""

    level: str = kinds.setting(kinds.choice("debug", "info", "warning", "error"), "info")
    format: str = kinds.setting(kinds.choice("text", "json"), "text")
    utc: bool = kinds.setting(kinds.flag(), False)


@dataclass(frozen=True)
class BridgeConfig:
    """[bridge]: which messages cross from one protocol to the other."""

    nsq_to_nats: bool = kinds.setting(kinds.flag(), True)
    nats_to_nsq: bool = kinds.setting(kinds.flag(), True)
    stan_to_nats: bool = kinds.setting(kinds.flag(), True)
    nats_to_stan: bool = kinds.setting(kinds.flag(), True)
    # None ("auto"): unless [nsq] has auth servers, see Config.shares_channels
    stan_to_nsq: bool | None = kinds.setting(kinds.flag_or_auto(), None)
    nsq_to_stan: bool | None = kinds.setting(kinds.flag_or_auto(), None)


@dataclass(frozen=True)
class Config:
    """Everything, one attribute per section."""

    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    nats: NatsConfig = NatsConfig()
    monitor: MonitorConfig = MonitorConfig()
    http: HttpConfig = HttpConfig()
    nsq: NsqConfig = NsqConfig()
    nsqlookupd: LookupConfig = LookupConfig()
    stan: StanConfig = StanConfig()
    storage: StorageConfig = StorageConfig()
    bridge: BridgeConfig = BridgeConfig()
    bulk: BulkConfig = BulkConfig()
    events: EventsConfig = EventsConfig()

    def crosses(self, switch: str) -> bool:
        """What a switch of [bridge] comes to. Those between NSQ and NATS Streaming are off by
        themselves where secrets say who may use a topic: clients of NATS Streaming have none."""
        wanted: bool | None = getattr(self.bridge, switch)
        return not self.nsq.auth_http_addresses if wanted is None else wanted
