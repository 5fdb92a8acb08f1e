"""[jetstream]: streams, consumers and key-value buckets for NATS clients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from broker.base import settings as kinds
from broker.base.patterns import lazy_pattern
from broker.base.units import COUNT_MAX
from broker.base.values import dataclass
from broker.engine.config import EngineNeeds, SyncPolicy, sync_policy
from broker.protocols.jetstream import limits

if TYPE_CHECKING:
    from broker.protocols.nats.settings import JetStream

_DOMAIN: Final = lazy_pattern(r"[^\s.*>]*")


def check_domain(name: str) -> None:
    """Raise ValueError unless the name can be one token of a subject."""
    if not _DOMAIN.fullmatch(name):
        raise ValueError(f"not a token of a subject: {name!r} (no blanks, dots, wildcards)")


@dataclass(frozen=True)
class JetStreamConfig:
    """[jetstream]: the service for JetStream clients. A `jetstream` block in a nats-server file
    replaces the settings that it has."""

    enabled: bool = kinds.setting(kinds.flag(), True)
    max_memory: int = kinds.size_setting(0, 0, COUNT_MAX)  # bytes in memory; 0: 3/4 of the memory
    max_storage: int = kinds.size_setting(0, 0, COUNT_MAX)  # bytes in files; 0: 3/4 of free space
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

    def merged(self, block: JetStream | None) -> JetStreamConfig:
        """This configuration with the settings of a nats-server file's block; None = no block."""
        if block is None:
            return self
        sync = self.sync
        if block.sync_always:
            sync = SyncPolicy("always")
        elif block.sync_ns:
            sync = SyncPolicy("period", block.sync_ns)
        return replace(
            self,
            enabled=block.enabled,
            max_memory=block.max_memory or self.max_memory,
            max_storage=block.max_storage or self.max_storage,
            sync=sync,
            domain=block.domain or self.domain,
            strict=block.strict,
            max_ack_pending=block.max_ack_pending or self.max_ack_pending,
            max_request_batch=block.max_request_batch or self.max_request_batch,
            max_consumers=block.max_consumers or self.max_consumers,
            duplicate_window_ns=block.duplicate_window_ns or self.duplicate_window_ns,
            request_queue=block.request_queue or self.request_queue,
        )
