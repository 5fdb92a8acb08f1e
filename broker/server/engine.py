"""The settings of a server's engine, and the checks of its health."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Final

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.engine import limits
from broker.engine.config import EngineUser
from broker.engine.cursor.events import EventLog
from broker.protocols.access import Access
from broker.protocols.config import BridgeConfig, TopicGuard

if TYPE_CHECKING:
    from broker.config.config import Config
    from broker.engine.engine import Engine

log = logging.getLogger("broker.server")

LOGS_FOLDER: Final = "logs"
UNCLAIMED: Final = "its metadata was lost: it drops nothing until POST /v1/topic/claim"


def engine_options(config: Config) -> limits.EngineLimits:
    """The limits of the engine."""
    storage, bridge = config.storage, config.section(BridgeConfig)
    sections = [section for _, section in config.sections() if isinstance(section, EngineUser)]
    needs = [section.engine_needs() for section in sections]
    return limits.EngineLimits(
        ack_latency_ns=max(need.ack_latency_ns for need in needs),
        delay_max_ns=max(need.delay_max_ns for need in needs),
        segment_bytes=storage.segment_size,
        append_bytes_max=storage.append_buffer_max,
        memory_bytes_max=storage.memory_topic_max,
        memory_segment_bytes=min(limits.MEMORY_SEGMENT_BYTES, storage.memory_topic_max),
        load_bytes=limits.LOAD_BYTES,
        journal_bytes_min=limits.JOURNAL_BYTES_MIN,
        reclaim_bytes=limits.RECLAIM_BYTES,
        spare_rate=limits.SPARE_RATE,
        keep_bytes=limits.KEEP_BYTES,
        short_bytes=min(limits.SHORT_BYTES, storage.segment_size),
        deliver_bytes_max=limits.DELIVER_BYTES_MAX,
        backlog_bytes_max=limits.BACKLOG_BYTES_MAX,
        live_ns=limits.LIVE_TIME,
        inline_bytes=limits.INLINE_BYTES,
        inline_long_bytes=limits.INLINE_LONG_BYTES,
        inline_long_ns=limits.INLINE_LONG_TIME,
        inline_stall_ns=limits.INLINE_STALL,
        inline_pause_ns=limits.INLINE_PAUSE,
        inline_pause_max_ns=limits.INLINE_PAUSE_MAX,
        retry_ns=limits.APPEND_RETRY,
        entries_max=limits.CURSOR_ENTRIES_MAX,
        deferred_max=limits.CURSORS_DEFERRED_MAX,
        window_max=limits.CURSOR_WINDOW_MAX,
        settle_poll=limits.SETTLE_POLL / SECOND,
        to_live=bridge.to_live,
        from_live=bridge.from_live,
        private_subjects=tuple(name for need in needs for name in need.private_subjects),
    )


def access_of(config: Config) -> Access:
    """The switches of [bridge]."""
    sections = (section for _, section in config.sections())
    guarded = any(isinstance(each, TopicGuard) and each.guards_topics for each in sections)
    return Access(**config.section(BridgeConfig).switches(guarded=guarded))


def delivery_events(engine: Engine, config: Config) -> EventLog | None:
    """Start recording delivery events, if configured. OSError: their log cannot be created."""
    wanted = config.events
    if not wanted.topic:
        return None
    size = limits.EVENTS_BUFFER
    events = EventLog(engine.shared, engine.open_log, wanted.topic, size, wanted.linger_ns)
    events.begin()
    return events


def report(level: str, text: str, **details: object) -> None:
    """Write a log line of the engine."""
    log.log(logging.getLevelNamesMapping()[level.upper()], text, extra=fields(**details))


def broken_log(engine: Engine) -> str | None:
    """The first problem of the data folder, or of a log that cannot be written; None: no
    problem. A log in memory that is full is none: its consumers are behind, and nothing is broken.
    """
    lasting = engine.shared.health.first()
    if lasting is not None:
        return lasting
    for entry in engine.all_logs():
        if entry.last_error not in (0, errno.ENOBUFS):
            return f"log {entry.name}: {os.strerror(entry.last_error)}"
        if entry.unclaimed:
            return f"log {entry.name}: {UNCLAIMED}"
    return None
