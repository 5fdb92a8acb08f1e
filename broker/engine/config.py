"""The sections of the engine: [storage] with [[storage.topic]], and [events]."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import field
from typing import Literal, Protocol, runtime_checkable

from broker.base import settings as kinds
from broker.base.settings import duration_text
from broker.base.units import COUNT_MAX, DURATION_MAX, MS, SECOND
from broker.base.values import NamedTuple, dataclass
from broker.engine import limits
from broker.engine.names import check_pattern, check_topic, pattern_matches


class EngineNeeds(NamedTuple):
    """What a section of the configuration requires of the engine."""

    ack_latency_ns: int = 0  # how long latencies of acknowledgements are kept; 0 = not kept
    private_subjects: tuple[bytes, ...] = ()  # prefixes of subjects that topics do not store
    delay_max_ns: int = 0  # longest delay of a message; 0 = any


@runtime_checkable
class EngineUser(Protocol):
    """A section that requires something of the engine."""

    def engine_needs(self) -> EngineNeeds:
        """Its requirements."""


class SyncPolicy(NamedTuple):
    """When a log is made safe against a power cut."""

    mode: Literal["always", "period", "none"]
    period_ns: int = 0  # only for "period"

    def __str__(self) -> str:
        return duration_text(self.period_ns) if self.mode == "period" else self.mode

    @property
    def policy(self) -> str | float:
        """The policy in the engine's form: the word, or the period in seconds."""
        return self.period_ns / SECOND if self.mode == "period" else self.mode


def sync_policy() -> kinds.Kind[SyncPolicy]:
    """The words "always" and "none", or a period."""
    period = kinds.duration(limits.STORAGE_SYNC_PERIOD_MIN, limits.STORAGE_SYNC_PERIOD_MAX)

    def read(value: object) -> SyncPolicy:
        if value == "always":
            return SyncPolicy("always")
        if value == "none":
            return SyncPolicy("none")
        try:
            return SyncPolicy("period", period.read(value))
        except ValueError as error:
            raise ValueError(f'must be "always", "none" or a period: {error}') from None

    return kinds.Kind(read, str)


@dataclass(frozen=True)
class TopicConfig:
    """[[storage.topic]]: settings for the topics that a pattern matches."""

    pattern: str = kinds.setting(kinds.text(check_pattern), "")
    sync: SyncPolicy | None = kinds.setting(sync_policy(), None)  # None: as [storage]
    max_age_ns: int = kinds.duration_setting(0, off=True)  # 0: no limit, here and below
    max_bytes: int = kinds.size_setting(0, 0, COUNT_MAX)
    max_msgs: int = kinds.count_setting(0, 0)
    keep_ns: int = kinds.duration_setting(0, off=True)  # of what every channel has finished
    keep_bytes: int = kinds.size_setting(0, 0, COUNT_MAX)
    max_attempts: int = kinds.count_setting(0, 0, limits.ATTEMPTS_MAX)  # then a dead letter
    dead_letter_topic: str = kinds.setting(kinds.text(check_topic), "")  # empty: <topic>.dead


@dataclass(frozen=True)
class StorageConfig:
    """[storage]: the logs."""

    sync: SyncPolicy = kinds.setting(
        sync_policy(), SyncPolicy("period", limits.STORAGE_SYNC_PERIOD)
    )
    segment_size: int = kinds.size_setting(
        limits.STORAGE_SEGMENT_SIZE,
        limits.STORAGE_SEGMENT_SIZE_MIN,
        limits.STORAGE_SEGMENT_SIZE_MAX,
    )
    append_buffer_max: int = kinds.size_setting(
        limits.STORAGE_APPEND_BUFFER_MAX,
        limits.STORAGE_APPEND_BUFFER_MIN,
        limits.STORAGE_APPEND_BUFFER_CEILING,
    )
    memory_topic_max: int = kinds.size_setting(
        limits.STORAGE_MEMORY_TOPIC_MAX, limits.STORAGE_APPEND_BUFFER_MIN, COUNT_MAX
    )
    topic: tuple[TopicConfig, ...] = kinds.tables_setting(TopicConfig)

    def for_topic(self, name: str) -> TopicConfig:
        """The settings of this topic: the first entry that matches, completed with the defaults."""
        for entry in self._entries:
            if pattern_matches(entry.pattern, name):
                return entry
        return self._others

    # This is called twice for each log when the server starts.

    @functools.cached_property
    def _entries(self) -> tuple[TopicConfig, ...]:
        return tuple(
            dataclasses.replace(entry, sync=entry.sync or self.sync) for entry in self.topic
        )

    @functools.cached_property
    def _others(self) -> TopicConfig:
        return TopicConfig(pattern=">", sync=self.sync)


@dataclass(frozen=True)
class EventsConfig:
    """[events]: a log of delivery events; off unless it has a name."""

    topic: str = kinds.setting(kinds.text(check_topic), "")
    linger_ns: int = field(
        default=limits.EVENTS_LINGER,
        metadata={"kind": kinds.duration(0, limits.EVENTS_LINGER_MAX, off=True)},
    )
    max_age_ns: int = field(
        default=limits.EVENTS_MAX_AGE,
        metadata={"kind": kinds.duration(MS, DURATION_MAX, off=True)},
    )
    max_bytes: int = field(
        default=limits.EVENTS_MAX_BYTES, metadata={"kind": kinds.size(0, COUNT_MAX)}
    )

    def kept(self, name: str) -> tuple[int, int, int, int, int] | None:
        """The limits of a log in the engine's form, if it is the log of these events."""
        return (self.max_age_ns, self.max_bytes, 0, 0, 0) if name == self.topic else None
