"""The configuration: one TOML file, the environment, flags, turned into frozen dataclasses.

Flags win over the environment, the environment over the file, the file over defaults. This module
is their only reader. Attributes carry the names of the keys; durations end in _ns because
they are nanoseconds, sizes are bytes. What is wrong is refused, all of it at once, with its place.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from broker import config_parse as kinds
from broker import limits
from broker.config_check import conflicts, near, syntax_error
from broker.config_parse import Address, SyncPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Address", "Config", "ConfigError", "SyncPolicy", "load"]

T = TypeVar("T")
_LOOPBACK = "127.0.0.1"


def _setting(kind: kinds.Kind[Any], default: T) -> T:
    return field(default=default, metadata={"kind": kind})


def _duration(default: int, low: int = limits.MS, *, off: bool = False) -> int:
    return _setting(kinds.duration(low, limits.DURATION_MAX, off=off), default)


def _size(default: int, low: int, high: int) -> int:
    return _setting(kinds.size(low, high), default)


def _count(default: int, low: int, high: int = limits.COUNT_MAX) -> int:
    return _setting(kinds.number(low, high), default)


def _message_size(default: int) -> int:
    return _size(default, 1, limits.MESSAGE_SIZE_CEILING)


def _door(port: int) -> Address | None:
    return _setting(kinds.address(), Address(_LOOPBACK, port))


@dataclass(frozen=True)
class ServerConfig:
    """[server]: the process as a whole."""

    name: str = _setting(kinds.text(), "")  # empty: the server's id
    data: str = _setting(kinds.text(), "./data")


@dataclass(frozen=True)
class LogConfig:
    """[log]: what is written to standard error."""

    level: str = _setting(kinds.choice("debug", "info", "warning", "error"), "info")
    format: str = _setting(kinds.choice("text", "json"), "text")
    utc: bool = _setting(kinds.flag(), False)


@dataclass(frozen=True)
class NatsConfig:
    """[nats]: the door for NATS clients."""

    listen: Address | None = _door(limits.NATS_PORT)
    max_control_line: int = _size(
        limits.NATS_MAX_CONTROL_LINE,
        limits.NATS_MAX_CONTROL_LINE_MIN,
        limits.NATS_MAX_CONTROL_LINE_MAX,
    )
    max_payload: int = _message_size(limits.NATS_MAX_PAYLOAD)
    max_pending: int = _size(limits.NATS_MAX_PENDING, 1, limits.NATS_MAX_PENDING_MAX)
    max_connections: int = _count(limits.NATS_MAX_CONNECTIONS, 1, limits.CONNECTIONS_MAX)
    max_subscriptions: int = _count(limits.NATS_MAX_SUBSCRIPTIONS, 0)
    max_sub_tokens: int = _count(limits.NATS_MAX_SUB_TOKENS, 0)
    ping_interval_ns: int = _duration(limits.NATS_PING_INTERVAL)
    ping_max: int = _count(limits.NATS_PING_MAX, 1, limits.NATS_PING_MAX_MAX)
    write_deadline_ns: int = _duration(limits.NATS_WRITE_DEADLINE)


@dataclass(frozen=True)
class MonitorConfig:
    """[monitor]: the HTTP door with /healthz, /varz, /metrics."""

    listen: Address | None = _door(limits.MONITOR_PORT)


@dataclass(frozen=True)
class NsqConfig:
    """[nsq]: the doors for NSQ clients."""

    listen: Address | None = _door(limits.NSQ_PORT)
    http: Address | None = _door(limits.NSQ_HTTP_PORT)
    broadcast_address: str = _setting(kinds.text(), "")  # empty: the host's name
    node_id: int = _count(-1, -1, limits.NSQ_NODE_ID_MAX)  # -1: made from the host's name
    msg_timeout_ns: int = _duration(limits.NSQ_MSG_TIMEOUT)
    max_msg_timeout_ns: int = _duration(limits.NSQ_MAX_MSG_TIMEOUT)
    max_req_timeout_ns: int = _duration(limits.NSQ_MAX_REQ_TIMEOUT)
    max_msg_size: int = _message_size(limits.NSQ_MAX_MSG_SIZE)
    max_body_size: int = _message_size(limits.NSQ_MAX_BODY_SIZE)
    max_heartbeat_interval_ns: int = _duration(
        limits.NSQ_MAX_HEARTBEAT_INTERVAL, limits.NSQ_HEARTBEAT_INTERVAL_MIN
    )
    max_rdy_count: int = _count(limits.NSQ_MAX_RDY_COUNT, 1, limits.NSQ_RDY_COUNT_CEILING)
    max_output_buffer_size: int = _size(
        limits.NSQ_MAX_OUTPUT_BUFFER_SIZE,
        limits.NSQ_OUTPUT_BUFFER_SIZE_MIN,
        limits.NSQ_OUTPUT_BUFFER_SIZE_CEILING,
    )
    max_output_buffer_timeout_ns: int = _duration(limits.NSQ_MAX_OUTPUT_BUFFER_TIMEOUT)
    min_output_buffer_timeout_ns: int = _duration(limits.NSQ_MIN_OUTPUT_BUFFER_TIMEOUT)
    output_buffer_timeout_ns: int = _duration(limits.NSQ_OUTPUT_BUFFER_TIMEOUT)
    max_channel_consumers: int = _count(limits.NSQ_MAX_CHANNEL_CONSUMERS, 0)
    max_deflate_level: int = _count(
        limits.NSQ_MAX_DEFLATE_LEVEL, 1, limits.NSQ_DEFLATE_LEVEL_CEILING
    )
    requeue_on_close: bool = _setting(kinds.flag(), True)


@dataclass(frozen=True)
class TopicConfig:
    """[[storage.topic]]: what differs for the topics that a pattern matches."""

    pattern: str = _setting(kinds.text(kinds.check_pattern), "")
    sync: SyncPolicy | None = _setting(kinds.sync(), None)  # None: as [storage]
    max_age_ns: int = _duration(0, off=True)  # 0: no limit, here and below
    max_bytes: int = _size(0, 0, limits.COUNT_MAX)
    max_msgs: int = _count(0, 0)


@dataclass(frozen=True)
class StorageConfig:
    """[storage]: the logs."""

    sync: SyncPolicy = _setting(kinds.sync(), SyncPolicy("period", limits.STORAGE_SYNC_PERIOD))
    segment_size: int = _size(
        limits.STORAGE_SEGMENT_SIZE,
        limits.STORAGE_SEGMENT_SIZE_MIN,
        limits.STORAGE_SEGMENT_SIZE_MAX,
    )
    append_buffer_max: int = _size(
        limits.STORAGE_APPEND_BUFFER_MAX,
        limits.STORAGE_APPEND_BUFFER_MIN,
        limits.NATS_MAX_PENDING_MAX,
    )
    memory_topic_max: int = _size(
        limits.STORAGE_MEMORY_TOPIC_MAX, limits.STORAGE_APPEND_BUFFER_MIN, limits.COUNT_MAX
    )
    topic: tuple[TopicConfig, ...] = ()

    def for_topic(self, name: str) -> TopicConfig:
        """What holds for this topic: the first entry that matches, completed with the defaults."""
        for entry in self.topic:
            if kinds.pattern_matches(entry.pattern, name):
                return dataclasses.replace(entry, sync=entry.sync or self.sync)
        return TopicConfig(pattern=">", sync=self.sync)


@dataclass(frozen=True)
class BridgeConfig:
    """[bridge]: which messages cross from one protocol to the other."""

    nsq_to_nats: bool = _setting(kinds.flag(), True)
    nats_to_nsq: bool = _setting(kinds.flag(), True)


@dataclass(frozen=True)
class Config:
    """Everything, one attribute per section."""

    server: ServerConfig = ServerConfig()
    log: LogConfig = LogConfig()
    nats: NatsConfig = NatsConfig()
    monitor: MonitorConfig = MonitorConfig()
    nsq: NsqConfig = NsqConfig()
    storage: StorageConfig = StorageConfig()
    bridge: BridgeConfig = BridgeConfig()


# Flags of `twinwire serve` that set a key.
FLAGS = {
    "--data": ("server", "data"),
    "--nats": ("nats", "listen"),
    "--monitor": ("monitor", "listen"),
    "--nsq": ("nsq", "listen"),
    "--nsq-http": ("nsq", "http"),
    "--log-level": ("log", "level"),
    "--log-format": ("log", "format"),
}

SECTIONS = {f.name: type(f.default) for f in dataclasses.fields(Config)}


class Mistake(NamedTuple):
    """One thing wrong with the configuration."""

    place: str  # file:line, file:line:column, "environment", or a flag
    key: str  # section.key, or empty
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class ConfigError(Exception):
    """The configuration is refused."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


def _line_of(mistake: Mistake) -> int:
    # What stands in no file comes last, in the order in which it was found.
    match = re.search(r":(\d+)$", mistake.place)
    return int(match[1]) if match else limits.COUNT_MAX


def settings(section: type) -> dict[str, tuple[str, kinds.Kind[Any]]]:
    """Key -> attribute and kind, in the order of the section's class."""
    return {
        f.name.removesuffix("_ns"): (f.name, f.metadata["kind"])
        for f in dataclasses.fields(section)
        if "kind" in f.metadata
    }


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Config:
    """Read all sources; `flags` maps names of FLAGS to text. ConfigError lists all mistakes."""
    reading = _Reading()
    if file is not None:
        reading.take_file(file)
    reading.take_environment(environment or {})
    reading.take_flags(flags or {})
    return reading.finish()


def read_toml(file: Path) -> dict[str, object]:
    """A TOML file that is not ours. OSError; ValueError when it is not TOML."""
    return tomllib.loads(file.read_bytes().decode())


class _Reading:
    """Values as they were found, each with its place, and what is wrong so far."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self.found: dict[tuple[str, str], tuple[str, object]] = {}
        self.topics: tuple[TopicConfig, ...] = ()

    def wrong(self, place: str, key: str, reason: str) -> None:
        self.mistakes.append(Mistake(place, key, reason))

    def take_file(self, file: Path) -> None:
        try:
            source = file.read_bytes().decode().replace("\r\n", "\n")
            document = tomllib.loads(source)
        except OSError as error:
            return self.wrong(str(file), "", f"cannot be read: {error.strerror}")
        except UnicodeDecodeError as error:
            return self.wrong(str(file), "", f"is not UTF-8 text (byte {error.start + 1})")
        except tomllib.TOMLDecodeError as error:
            place, reason = syntax_error(str(error), source)
            return self.wrong(f"{file}:{place}", "", reason)
        lines = kinds.key_lines(source)

        def place_of(*path: str | int) -> str:
            while path and path not in lines:
                path = path[:-1]
            return f"{file}:{lines.get(path, 1)}"

        for name, table in document.items():
            if name not in SECTIONS:
                self.wrong(place_of(name), name, f"unknown section{near(name, SECTIONS)}")
            elif not isinstance(table, dict):
                self.wrong(place_of(name), name, "is a section: write [" + name + "]")
            else:
                known = settings(SECTIONS[name])
                for key, value in table.items():
                    if (name, key) == ("storage", "topic"):
                        self._take_topics(value, place_of)
                    elif key not in known:
                        reason = f"unknown key{near(key, known)}"
                        self.wrong(place_of(name, key), f"{name}.{key}", reason)
                    else:
                        self.found[name, key] = (place_of(name, key), value)
        return None

    def _take_topics(self, tables: object, place_of: Any) -> None:
        if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
            place = place_of("storage", "topic")
            return self.wrong(place, "storage.topic", "is a list: write [[storage.topic]]")
        entries = []
        for index, table in enumerate(tables):
            label = f"storage.topic[{index + 1}]"
            if not table.get("pattern"):
                self.wrong(place_of("storage", "topic", index), label, "pattern is missing")
            values = {
                (label, key): (place_of("storage", "topic", index, key), value)
                for key, value in table.items()
            }
            entries.append(self._build(TopicConfig, label, values))
        self.topics = tuple(entries)
        return None

    def take_environment(self, environment: Mapping[str, str]) -> None:
        for variable, value in sorted(environment.items()):
            match = re.fullmatch(rf"TWINWIRE_({'|'.join(SECTIONS)})_(\w+)", variable, re.IGNORECASE)
            if match is None:
                continue
            section, key = match[1].lower(), match[2].lower()
            known = settings(SECTIONS[section])
            if key in known and variable.isupper():
                self.found[section, key] = (variable, known[key][1].from_text(value))
            else:
                self.wrong(variable, "", f"unknown variable: [{section}] has no key {key}")

    def take_flags(self, flags: Mapping[str, str]) -> None:
        for flag, value in flags.items():
            section, key = FLAGS[flag]
            kind = settings(SECTIONS[section])[key][1]
            self.found[section, key] = (flag, kind.from_text(value))

    def finish(self) -> Config:
        sections = {name: self._build(cls, name, self.found) for name, cls in SECTIONS.items()}
        sections["storage"] = dataclasses.replace(sections["storage"], topic=self.topics)
        config = Config(**sections)
        if not self.mistakes:
            for keys, reason in conflicts(config):
                key = next((k for k in keys if k in self.found), keys[0])
                place = self.found[key][0] if key in self.found else "default"
                self.wrong(place, ".".join(key), reason)
        if self.mistakes:
            raise ConfigError(sorted(self.mistakes, key=_line_of))
        return config

    def _build(
        self, section: type, label: str, found: Mapping[tuple[str, str], tuple[str, object]]
    ) -> Any:
        known = settings(section)
        values = {}
        for (owner, key), (place, raw) in found.items():
            if owner != label:
                continue
            if key not in known:
                self.wrong(place, f"{label}.{key}", f"unknown key{near(key, known)}")
                continue
            attribute, kind = known[key]
            try:
                values[attribute] = kind.read(raw)
            except ValueError as error:
                self.wrong(place, f"{label}.{key}", str(error))
        return section(**values)
