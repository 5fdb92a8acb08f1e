"""[jetstream]: streams, consumers and key-value buckets for NATS clients."""

from __future__ import annotations

from typing import Final

from broker.base import settings as kinds
from broker.base.patterns import lazy_pattern
from broker.base.units import COUNT_MAX
from broker.base.values import dataclass
from broker.engine.config import EngineNeeds, SyncPolicy, sync_policy
from broker.protocols.jetstream import limits

_DOMAIN: Final = lazy_pattern(r"[^\s.*>]*")


def check_domain(name: str) -> None:
    """Raise ValueError unless the name can be one token of a subject."""
    if not _DOMAIN.fullmatch(name):
        raise ValueError(f"not a token of a subject: {name!r} (no blanks, dots, wildcards)")


@dataclass(frozen=True)
class JetStreamConfig:
    """[jetstream]: the service for JetStream clients. A `jetstream` block in a nats-server file
    replaces what it names."""

    enabled: bool = kinds.setting(kinds.flag(), True)
    max_memory: int = kinds.size_setting(0, 0, COUNT_MAX)  # of streams in memory; 0: 3/4 of it
    max_storage: int = kinds.size_setting(0, 0, COUNT_MAX)  # of file streams; 0: 3/4 of the free
    sync: SyncPolicy = kinds.setting(sync_policy(), SyncPolicy("always"))  # of file streams
    domain: str = kinds.setting(kinds.text(check_domain), "")
    strict: bool = kinds.setting(kinds.flag(), True)  # refuse requests with unknown fields
    max_ack_pending: int = kinds.count_setting(0, 0)  # of one consumer; 0 = no limit, as below
    max_request_batch: int = kinds.count_setting(0, 0)  # of one pull request
    max_consumers: int = kinds.count_setting(0, 0)  # of streams that set no limit
    duplicate_window_ns: int = kinds.duration_setting(0, off=True)  # the longest window
    request_queue: int = kinds.count_setting(limits.JS_REQUESTS_MAX, 1)  # of one account

    def engine_needs(self) -> EngineNeeds:
        """Subjects of the service, which are excluded from topics."""
        return EngineNeeds(private_subjects=(b"$JS.",) if self.enabled else ())
