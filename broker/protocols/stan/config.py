"""[stan]: the section of NATS Streaming, and the limits of each channel.

Entries of [[stan.channel]] apply to names with wildcards. The entries that match a channel are
ordered from wide to narrow, compared token by token: `>` is wider than `*`, and `*` than a word.
The narrowest entry applies; values that it leaves open (None) come from the next wider one, and
finally from the limits in [stan].
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Final, TypeVar

from broker.base import settings as kinds
from broker.base.patterns import lazy_pattern
from broker.base.units import COUNT_MAX, DURATION_MAX, MS
from broker.base.values import dataclass
from broker.engine.config import EngineNeeds, SyncPolicy, sync_policy
from broker.engine.names import check_pattern, pattern_matches
from broker.protocols.nats.limits import NATS_MAX_CONTROL_LINE
from broker.protocols.stan import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
_SUBJECT: Final = lazy_pattern(r"[^\s.*>]+(\.[^\s.*>]+)*")
_RANK: Final = {">": 0, "*": 1}
_WORD: Final = lazy_pattern(r"[^\x00-\x20]*")
# Answers and requests between clients and services of NATS Streaming.
_PRIVATE: Final = b"_STAN."


def _count(default: T) -> T:
    return kinds.setting(kinds.number(0, COUNT_MAX), default)


def _size(default: T) -> T:
    return kinds.setting(kinds.size(0, COUNT_MAX), default)


def _age(default: T) -> T:
    return kinds.setting(kinds.duration(MS, DURATION_MAX, off=True), default)


def _pause(default: int) -> int:
    return kinds.setting(kinds.duration(MS, DURATION_MAX), default)


def check_subject(name: str) -> None:
    """Raise ValueError unless the name can be a part of a subject that clients publish to."""
    if not _SUBJECT.fullmatch(name):
        raise ValueError(f"not part of a subject: {name!r} (no blanks, wildcards, empty tokens)")


def check_channels(pattern: str) -> None:
    """Raise ValueError if the pattern cannot match a channel."""
    check_pattern(pattern)
    if "/" in pattern or any(
        word not in ("*", ">") and re.search(r"[*>]", word) for word in pattern.split(".")
    ):
        raise ValueError(f"not a pattern of channels: {pattern!r}")


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """The limits of one channel; 0 = no limit."""

    max_msgs: int
    max_bytes: int
    max_age_ns: int
    max_subs: int
    max_inactivity_ns: int


@dataclass(frozen=True)
class StanChannelConfig:
    """[[stan.channel]]: limits for the channels that a pattern matches; None = inherited."""

    pattern: str = kinds.setting(kinds.text(check_channels), "")
    max_subs: int | None = _count(None)
    max_msgs: int | None = _count(None)
    max_bytes: int | None = _size(None)
    max_age_ns: int | None = _age(None)
    max_inactivity_ns: int | None = _age(None)

    def with_defaults(self, wider: ChannelLimits) -> ChannelLimits:
        """The limits of this entry; None is replaced from `wider`."""
        values = {}
        for each in fields(wider):
            own = getattr(self, each.name)
            values[each.name] = getattr(wider, each.name) if own is None else own
        return ChannelLimits(**values)


@dataclass(frozen=True)
class StanConfig:
    """[stan]: the service for NATS Streaming clients."""

    enabled: bool = kinds.setting(kinds.flag(), False)
    cluster_id: str = kinds.setting(kinds.text(check_subject), "test-cluster")
    discover_prefix: str = kinds.setting(kinds.text(check_subject), "_STAN.discover")
    account: str = kinds.setting(kinds.text(), "$G")  # the account whose clients are served
    store: str = kinds.setting(kinds.choice("file", "memory"), "file")
    sync: SyncPolicy = kinds.setting(sync_policy(), SyncPolicy("always"))
    hb_interval_ns: int = _pause(limits.STAN_HEARTBEAT_INTERVAL)
    hb_timeout_ns: int = _pause(limits.STAN_HEARTBEAT_TIMEOUT)
    hb_fail_count: int = _count(limits.STAN_HEARTBEAT_FAILURES)
    # a second use of a durable replaces the first instead of failing
    replace_durable: bool = kinds.setting(kinds.flag(), False)
    max_channels: int = _count(limits.STAN_MAX_CHANNELS)  # 0 = no limit, here and below
    max_subs: int = _count(limits.STAN_MAX_SUBSCRIPTIONS)
    max_msgs: int = _count(limits.STAN_MAX_MSGS)
    max_bytes: int = _size(limits.STAN_MAX_BYTES)
    max_age_ns: int = _age(0)
    max_inactivity_ns: int = _age(0)
    # patterns of topics that become channels at their first use
    adopt_topics: tuple[str, ...] = kinds.setting(kinds.texts(check_channels), ())
    channel: tuple[StanChannelConfig, ...] = kinds.tables_setting(StanChannelConfig)

    @property
    def limits(self) -> ChannelLimits:
        """The limits of channels without an entry."""
        return ChannelLimits(
            **{each.name: getattr(self, each.name) for each in fields(ChannelLimits)}
        )

    def limits_for(self, channel: str) -> ChannelLimits:
        """The limits of this channel, which need not exist."""
        row = self._row(channel)
        return self._resolved(row[-1]) if row else self.limits

    def patterns(self) -> tuple[tuple[str, ChannelLimits], ...]:
        """Patterns of the entries, from wide to narrow, with the limits of their channels."""
        names = sorted(self._entries, key=_width)
        return tuple((name, self._resolved(name)) for name in names)

    @property
    def _entries(self) -> dict[str, StanChannelConfig]:
        return {entry.pattern: entry for entry in self.channel}

    def _row(self, name: str) -> list[str]:
        return sorted((p for p in self._entries if pattern_matches(p, name)), key=_width)

    def _resolved(self, pattern: str) -> ChannelLimits:
        row = self._row(pattern)
        index = row.index(pattern)
        wider = self._resolved(row[index - 1]) if index else self.limits
        return self._entries[pattern].with_defaults(wider)

    def engine_needs(self) -> EngineNeeds:
        """The service's subjects, which are excluded from topics."""
        return EngineNeeds(private_subjects=(_PRIVATE, f"{self.discover_prefix}.".encode()))

    def conflicts(self, _config: object) -> Iterator[kinds.Conflict]:
        """Conflicts between values that are valid alone."""
        for key, reason in self._contradictions():
            yield kinds.conflict(f"stan.{key}", "stan.enabled", reason)

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        literal = sum(1 for entry in self.channel if not re.search(r"[*>]", entry.pattern))
        if 0 < self.max_channels < literal:
            yield "max_channels", f"is {self.max_channels}, but [[stan.channel]] names {literal}"
        if not self.account:
            yield "account", "is empty: $G is the account of clients without one"
        seen: set[str] = set()
        for entry in self.channel:
            if entry.pattern in seen:
                yield "channel", f"the pattern {entry.pattern!r} is there twice"
            seen.add(entry.pattern)


def _width(pattern: str) -> tuple[tuple[int, str], ...]:
    return tuple((_RANK.get(token, 2), token) for token in pattern.split("."))


def is_subject_to_send(inbox: str) -> bool:
    """Whether messages can be sent to a subject: NATS subjects cannot contain white space."""
    return _WORD.fullmatch(inbox) is not None and len(inbox.encode()) <= NATS_MAX_CONTROL_LINE


def is_valid_channel(name: str, *, wildcards: bool = False) -> bool:
    """Whether a channel name is valid: no empty token, no `/`, no wildcards."""
    tokens = name.split(".")
    if "" in tokens or "/" in name or len(name.encode()) > NATS_MAX_CONTROL_LINE:
        return False
    if not wildcards:
        return "*" not in name and ">" not in name
    if ">" in tokens[:-1]:
        return False
    return all(word in _RANK for word in tokens if "*" in word or ">" in word)


class Subjects:
    """The subject of each kind of request."""

    def __init__(self, cluster_id: str, discover_prefix: str) -> None:
        self.connect = f"{discover_prefix}.{cluster_id}"
        self.ping = f"{self.connect}.pings"
        self.publish = f"_STAN.pub.{cluster_id}"
        self.subscribe = f"_STAN.sub.{cluster_id}"
        self.unsubscribe = f"_STAN.unsub.{cluster_id}"
        self.close_subscription = f"_STAN.subclose.{cluster_id}"
        self.close = f"_STAN.close.{cluster_id}"
