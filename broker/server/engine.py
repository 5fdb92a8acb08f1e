"""What the engine of a server is told, and how it is watched."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.engine import limits
from broker.engine import limits as limits_events
from broker.engine.cursor.events import EventLog
from broker.protocols.access import Access

if TYPE_CHECKING:
    from broker.config.load import Config
    from broker.engine.engine import Engine

log = logging.getLogger("broker.server")

LOGS_FOLDER: Final = "logs"
STAN_FOLDER: Final = "stan"
UNCLAIMED: Final = "its metadata were lost: it drops nothing until POST /v1/topic/claim"


def engine_options(config: Config) -> dict[str, Any]:
    """The engine's numbers, under the names its Shared has for them."""
    storage, nsq = config.storage, config.nsq
    window_ns = nsq.e2e_processing_latency_window_time_ns
    return {
        "ack_latency_ns": window_ns if nsq.e2e_processing_latency_percentiles else 0,
        "segment_bytes": storage.segment_size,
        "append_bytes_max": storage.append_buffer_max,
        "memory_bytes_max": storage.memory_topic_max,
        "memory_segment_bytes": min(limits.MEMORY_SEGMENT_BYTES, storage.memory_topic_max),
        "load_bytes": limits.LOAD_BYTES,
        "journal_bytes_min": limits.JOURNAL_BYTES_MIN,
        "reclaim_bytes": limits.RECLAIM_BYTES,
        "spare_rate": limits.SPARE_RATE,
        "pump_bytes_max": limits.PUMP_BYTES_MAX,
        "inline_bytes": limits.INLINE_BYTES,
        "inline_stall_ns": limits.INLINE_STALL,
        "inline_pause_ns": limits.INLINE_PAUSE,
        "inline_pause_max_ns": limits.INLINE_PAUSE_MAX,
        "retry_ns": limits.APPEND_RETRY,
        "entries_max": limits.CURSOR_ENTRIES_MAX,
        "deferred_max": limits.CURSORS_DEFERRED_MAX,
        "window_max": limits.CURSOR_WINDOW_MAX,
        "settle_poll": limits.SETTLE_POLL / SECOND,
        "to_live": config.bridge.nsq_to_nats,
        "from_live": config.bridge.nats_to_nsq,
        # answers and requests between clients and services: no log of such a name hears them
        "private_subjects": (b"_INBOX.", b"_STAN.", f"{config.stan.discover_prefix}.".encode()),
    }


def access_of(config: Config) -> Access:
    """What the switches of [bridge] say."""
    bridge = config.bridge
    return Access(
        nsq_to_nats=bridge.nsq_to_nats,
        nats_to_nsq=bridge.nats_to_nsq,
        stan_to_nats=bridge.stan_to_nats,
        nats_to_stan=bridge.nats_to_stan,
        stan_to_nsq=config.crosses("stan_to_nsq"),
        nsq_to_stan=config.crosses("nsq_to_stan"),
    )


def delivery_events(engine: Engine, config: Config) -> EventLog | None:
    """Begin to tell of deliveries, if that is configured. OSError: their log cannot be made."""
    wanted = config.events
    if not wanted.topic:
        return None
    size = limits_events.EVENTS_BUFFER
    events = EventLog(engine.shared, engine.open_log, wanted.topic, size, wanted.linger_ns)
    events.begin()
    return events


def report(level: str, text: str, **details: object) -> None:
    """A log line of the engine."""
    log.log(logging.getLevelNamesMapping()[level.upper()], text, extra=fields(**details))


def broken_log(engine: Engine) -> str | None:
    """What is wrong with the data folder, or with the first log that cannot be written; None when
    all is well."""
    lasting = engine.shared.health.first()
    if lasting is not None:
        return lasting
    for entry in engine.logs.values():
        if entry.last_error:
            return f"log {entry.name}: {os.strerror(entry.last_error)}"
        if entry.unclaimed:
            return f"log {entry.name}: {UNCLAIMED}"
    return None
