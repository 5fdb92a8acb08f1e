"""The section of nsqlookupd."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker import config_parse as kinds
from broker import limits
from broker.config_parse import Address


@dataclass(frozen=True)
class LookupConfig:
    """[nsqlookupd]: tells consumers which nsqd has which topic."""

    enabled: bool = field(default=False, metadata={"kind": kinds.flag()})
    listen: Address | None = field(
        default=Address("127.0.0.1", limits.NSQ_LOOKUP_PORT), metadata={"kind": kinds.address()}
    )
    http: Address | None = field(
        default=Address("127.0.0.1", limits.NSQ_LOOKUP_HTTP_PORT),
        metadata={"kind": kinds.address()},
    )
    broadcast_address: str = field(default="", metadata={"kind": kinds.text()})  # "": host's name
    inactive_producer_timeout_ns: int = field(
        default=limits.NSQ_LOOKUP_INACTIVE,
        metadata={"kind": kinds.duration(limits.MS, limits.DURATION_MAX)},
    )
    tombstone_lifetime_ns: int = field(
        default=limits.NSQ_LOOKUP_TOMBSTONE,
        metadata={"kind": kinds.duration(limits.MS, limits.DURATION_MAX)},
    )
