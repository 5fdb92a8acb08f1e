"""The sections of NATS: [nats] and [monitor]."""

from __future__ import annotations

from dataclasses import dataclass

from broker.base import settings as kinds
from broker.base.settings import Address
from broker.base.units import CONNECTIONS_MAX
from broker.protocols.nats import limits
from broker.protocols.nats.monitoring import limits as monitoring_limits


@dataclass(frozen=True)
class NatsConfig:
    """[nats]: the door for NATS clients."""

    listen: Address | None = kinds.listen_setting(limits.NATS_PORT)
    config_file: str = kinds.setting(
        kinds.text(), ""
    )  # in nats-server's language; "": the keys here
    max_control_line: int = kinds.size_setting(
        limits.NATS_MAX_CONTROL_LINE,
        limits.NATS_MAX_CONTROL_LINE_MIN,
        limits.NATS_MAX_CONTROL_LINE_MAX,
    )
    max_payload: int = kinds.message_size_setting(limits.NATS_MAX_PAYLOAD)
    max_pending: int = kinds.size_setting(limits.NATS_MAX_PENDING, 1, limits.NATS_MAX_PENDING_MAX)
    max_connections: int = kinds.count_setting(limits.NATS_MAX_CONNECTIONS, 1, CONNECTIONS_MAX)
    max_subscriptions: int = kinds.count_setting(limits.NATS_MAX_SUBSCRIPTIONS, 0)
    max_sub_tokens: int = kinds.count_setting(limits.NATS_MAX_SUB_TOKENS, 0)
    ping_interval_ns: int = kinds.duration_setting(limits.NATS_PING_INTERVAL)
    ping_max: int = kinds.count_setting(limits.NATS_PING_MAX, 1, limits.NATS_PING_MAX_MAX)
    write_deadline_ns: int = kinds.duration_setting(limits.NATS_WRITE_DEADLINE)


@dataclass(frozen=True)
class MonitorConfig:
    """[monitor]: the HTTP door with /healthz, /varz, /metrics."""

    listen: Address | None = kinds.listen_setting(monitoring_limits.MONITOR_PORT)
    user: str = kinds.setting(
        kinds.text(), ""
    )  # empty: nobody is asked, or those of nats.config_file
    password: str = kinds.setting(kinds.text(), "", shown=False)
