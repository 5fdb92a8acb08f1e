"""Dead letters: the policy of each channel, their headers, and requeueing.

The policy of a channel comes from the configuration or is set for that channel alone. A policy of
the second kind is stored in its topic's folder, overrides the configuration and is deleted with the
channel. A dead letter names its origin in headers with the syntax of NATS headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from broker.base.durable import sync_path
from broker.base.units import SECOND
from broker.base.values import NamedTuple
from broker.engine import limits as engine_limits
from broker.engine.cursor.cursor import cursors_of
from broker.engine.cursor.deadletter import ADDRESSED, DeadLetters, dead_letters_of
from broker.engine.cursor.local import LocalConsumer
from broker.engine.log.publish import append, failure, outcome, settled
from broker.engine.names import NAME_MAX, is_ephemeral, is_name
from broker.protocols.access import WRITE
from broker.protocols.nsq import limits
from broker.protocols.nsq.topics import channel_of, is_channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.engine.config import TopicConfig
    from broker.engine.cursor.cursor import Cursor
    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.protocols.nsq.topics import Topics

LOG = logging.getLogger("broker.nsq")

FILE = "deadletters.json"
SUFFIX = ".dead"
_VERSION = 1
_BEGIN, _LINE, _END = b"NATS/1.0\r\n", b"\r\n", b"\r\n\r\n"
_OURS = b"twinwire-"
_TOPIC, _CHANNEL = "Twinwire-Topic", "Twinwire-Channel"


class Policy(NamedTuple):
    """The number of deliveries after which a message becomes a dead letter, and its target."""

    max_attempts: int  # 0 = never
    topic: str = ""  # empty: see default_target


class Origin(NamedTuple):
    """The origin of a dead letter, and the headers it had there."""

    topic: str
    channel: str
    headers: bytes


def default_target(topic: str) -> str:
    """The target topic for dead letters: the name, cut if necessary, and a suffix."""
    base = topic.partition("#")[0]
    room = NAME_MAX - len(SUFFIX)
    if len(base) > room:
        mark = f"-{zlib.crc32(base.encode()):08x}"
        base = base[: room - len(mark)] + mark
    return base + SUFFIX


def dead_letter_headers(cursor: Cursor, facts: tuple[int, int, str, int, bytes, bytes]) -> bytes:
    """The headers of a dead letter: its original ones, and those that name its origin."""
    seq, attempts, reason, timestamp_ns, subject, headers = facts
    origin = {
        _TOPIC: cursor.log.name,
        _CHANNEL: cursor.name,
        "Twinwire-Attempts": attempts,
        "Twinwire-Reason": reason,
        "Twinwire-Timestamp": timestamp_ns,
        "Twinwire-Sequence": seq,
    }
    lines = [
        *_original_lines(headers),
        *(f"{key}: {value}".encode() for key, value in origin.items()),
    ]
    if subject != cursor.log.name.encode():
        lines.append(b"Twinwire-Subject: " + subject)
    return _BEGIN + _LINE.join(lines) + _END


def _original_lines(headers: bytes) -> list[bytes]:
    """Header lines that the broker did not add."""
    lines = headers.split(_LINE)[1:]
    return [line for line in lines if line and not line.lower().startswith(_OURS)]


def origin_of(headers: bytes) -> Origin | None:
    """The origin of a dead letter; None if its headers do not name it."""

    def value(name: str) -> str | None:
        match = re.search(rb"\r\n" + name.encode() + rb": ([^\r\n]+)\r\n", headers)
        return match[1].decode("utf-8", "replace") if match else None

    topic, channel = value(_TOPIC), value(_CHANNEL)
    if topic is None or channel is None or not is_name(topic.encode()):
        return None
    kept = _original_lines(headers)
    return Origin(topic, channel, _BEGIN + _LINE.join(kept) + _END if kept else b"")


class Policies:
    """The dead-letter policies of all channels of one engine."""

    def __init__(self, engine: Engine, topics: Topics) -> None:
        self.engine = engine
        self.topics = topics
        self.settings_for: Callable[[str], TopicConfig] | None = None
        # topic -> channel -> the policy set for it, also of channels that were deleted since
        self.own: dict[str, dict[str, Policy]] = {}

    def begin(self, settings_for: Callable[[str], TopicConfig] | None = None) -> None:
        """Apply policies to all channels, now and later; `settings_for(topic)`: configuration."""
        self.settings_for = settings_for
        for log in self.engine.logs.values():
            if log.cursors:
                self.own[log.name] = _load(log)
        for log in list(self.engine.logs.values()):
            for cursor in cursors_of(log).values():
                self._apply(cursor)
        self.engine.shared.new_cursor = self._cursor_created

    def _cursor_created(self, cursor: Cursor) -> None:
        """Prepare a new channel: the policy of a deleted channel of that name does not apply."""
        topic = cursor.log.name
        if topic not in self.own and (kept := _load(cursor.log)):
            self.own[topic] = kept  # it had no channel at the start
        try:
            self._keep(cursor, None)
        except OSError as problem:
            LOG.error("%s: %s", FILE, problem)
            self.own[topic].pop(cursor.name, None)
        self._apply(cursor)

    def policy(self, cursor: Cursor) -> Policy:
        """The policy in force for a channel."""
        topic = cursor.log.name
        if not is_channel(cursor):
            return Policy(0)
        own = self.own.get(topic, {}).get(cursor.name)
        if own is None and self.settings_for is not None and not topic.endswith(SUFFIX):
            settings = self.settings_for(topic)
            own = Policy(settings.max_attempts, settings.dead_letter_topic)
        if own is None or own.max_attempts == 0 or own.topic == topic:
            return Policy(0)
        return own if own.topic else own._replace(topic=default_target(topic))

    def is_own(self, cursor: Cursor) -> bool:
        """Whether the policy was set for this channel."""
        return cursor.name in self.own.get(cursor.log.name, {})

    def set(self, cursor: Cursor, policy: Policy | None) -> None:
        """Set the policy of one channel; None = as configured. OSError if it cannot be stored; if
        only its name could not be synced, it applies nevertheless."""
        try:
            self._keep(cursor, policy)
        finally:
            self._apply(cursor)

    def _keep(self, cursor: Cursor, policy: Policy | None) -> None:
        topic = cursor.log.name
        before = self.own.get(topic, {})
        after = {name: kept for name, kept in before.items() if name != cursor.name}
        if policy is not None:
            after[cursor.name] = policy
        if after != before:
            lasting = {n: p for n, p in after.items() if not is_ephemeral(n.encode())}
            _save(cursor.log, lasting)
            self.own[topic] = after
            if cursor.log.folder is not None:
                sync_path(cursor.log.folder)  # else a power cut may restore the old file

    def _apply(self, cursor: Cursor) -> None:
        policy, dead = self.policy(cursor), dead_letters_of(cursor)
        if dead is not None:
            if (dead.deliver_max, dead.target) == policy:
                return
            dead.end()
        if policy.max_attempts:
            attempts, topic = policy
            DeadLetters(cursor, attempts, topic, self._target, dead_letter_headers).begin()

    def _target(self, topic: str) -> Log:
        return self.topics.open(topic, WRITE)


def _load(log: Log) -> dict[str, Policy]:
    """The policies set for the channels of a topic; a damaged file is reported and ignored."""
    if log.folder is None:
        return {}
    path = f"{log.folder}/{FILE}"
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - opened for each log at the start
            page = orjson.loads(file.read())
        if page["version"] != _VERSION:
            raise ValueError(f"version {page['version']}")
        return {
            str(name): Policy(int(entry["max_attempts"]), str(entry["topic"]))
            for name, entry in page["channels"].items()
            if 0 <= entry["max_attempts"] <= engine_limits.ATTEMPTS_MAX
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        LOG.error("%s cannot be read and does not count: %s", path, problem)
        return {}


def _save(log: Log, channels: dict[str, Policy]) -> None:
    if log.folder is None:
        return
    path = Path(log.folder) / FILE
    page = {
        "version": _VERSION,
        "channels": {name: policy._asdict() for name, policy in channels.items()},
    }
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(orjson.dumps(page, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


# --- requeueing


class Returned(NamedTuple):
    """The result of requeueing dead letters."""

    moved: int
    kept: int  # no origin, or the topic or channel was deleted
    failed: str  # why the rest was not tried; empty: all were tried


async def return_dead_letters(
    topics: Topics,
    cursor: Cursor,
    most: int,
    *,
    to_topic: bool,
    only: frozenset[int] | None = None,
) -> Returned:
    """Move up to `most` of the messages that wait in a channel back to their origin; `only`: those
    with these sequence numbers, and the others wait again.

    Each is appended to its topic, for its original channel only unless `to_topic`, and finished
    after the topic's log has stored it: if the process ends in between, both copies remain.
    """
    consumer = LocalConsumer(cursor, 0, *[limits.REQUEUE_ACK_WAIT / SECOND] * 2)
    consumer.heads = []
    arrived = asyncio.Event()
    consumer.arrived = arrived.set
    moved = kept = others = 0
    failed = ""
    most = min(most, cursor.depth)
    wanted = most if only is None else len(only)
    try:
        while moved + kept + others < most and moved + kept < wanted and not failed:
            left = most - moved - kept - others
            consumer.set_credit(kept + others + min(limits.REQUEUE_WINDOW, left))
            await _wait_for_records(consumer, arrived)
            if not consumer.records:
                break
            records, consumer.records = consumer.records, []
            heads, consumer.heads = consumer.heads, []
            sent: list[tuple[Log, int, int]] = []
            for (seq, _, _, body), (_, _, headers) in zip(records, heads, strict=True):
                if only is not None and seq not in only:
                    others += 1
                    continue
                origin = origin_of(headers)
                try:
                    log = None if origin is None else _target_log(topics, origin, to_topic=to_topic)
                except OSError as problem:  # those before it are on their way
                    failed = problem.strerror or str(problem)
                    break
                if log is None or origin is None:
                    kept += 1
                    continue
                ticket = _append(log, origin, body, to_topic=to_topic)
                if not ticket:
                    failed = log.refusal
                    break
                sent.append((log, seq, ticket))
            for log, seq, ticket in sent:
                await settled(log, ticket)
                if outcome(log, ticket) > 0:
                    moved += consumer.finish(seq) == 0
                else:
                    failed = failed or failure(log, ticket)
    finally:
        consumer.leave()
    return Returned(moved, kept, failed)


async def _wait_for_records(consumer: LocalConsumer, arrived: asyncio.Event) -> None:
    """Wait for records, up to a limit: another consumer may take them."""
    arrived.clear()
    if not consumer.records and consumer.cursor.depth:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(arrived.wait(), limits.REQUEUE_SILENCE / SECOND)


def _target_log(topics: Topics, origin: Origin, *, to_topic: bool) -> Log | None:
    """The log to requeue a dead letter to; None if it or the channel was deleted. OSError."""
    log = topics.log(origin.topic)
    if log is not None and not topics.access.may_topic(log, WRITE):
        return None
    if to_topic:
        return log or topics.open(origin.topic, WRITE)
    return log if log is not None and channel_of(log, origin.channel) else None


def _append(log: Log, origin: Origin, body: bytes, *, to_topic: bool) -> int:
    if to_topic:
        return append(log, body, headers=origin.headers)
    channel = origin.channel.encode()
    return append(log, body, headers=origin.headers, reply=channel, flags=ADDRESSED)
