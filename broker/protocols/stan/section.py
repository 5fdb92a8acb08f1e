"""The section of NATS Streaming."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from broker.base import settings as kinds
from broker.base.units import COUNT_MAX, DURATION_MAX, MS
from broker.engine.config import SyncPolicy, sync_policy
from broker.engine.names import check_pattern
from broker.protocols.stan import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")


def _count(default: T) -> T:
    return kinds.setting(kinds.number(0, COUNT_MAX), default)


def _size(default: T) -> T:
    return kinds.setting(kinds.size(0, COUNT_MAX), default)


def _age(default: T) -> T:
    return kinds.setting(kinds.duration(MS, DURATION_MAX, off=True), default)


def _pause(default: int) -> int:
    return kinds.setting(kinds.duration(MS, DURATION_MAX), default)


def check_subject(name: str) -> None:
    """Refuse what cannot be a part of a subject that somebody publishes to."""
    if not _SUBJECT.fullmatch(name):
        raise ValueError(f"not part of a subject: {name!r} (no blanks, wildcards, empty tokens)")


def check_channels(pattern: str) -> None:
    """Refuse what matches no channel."""
    check_pattern(pattern)
    if "/" in pattern or any(
        word not in ("*", ">") and re.search(r"[*>]", word) for word in pattern.split(".")
    ):
        raise ValueError(f"not a pattern of channels: {pattern!r}")


@dataclass(frozen=True)
class StanChannelConfig:
    """[[stan.channel]]: what differs for the channels that a pattern matches; None = inherited."""

    pattern: str = kinds.setting(kinds.text(check_channels), "")
    max_subs: int | None = _count(None)
    max_msgs: int | None = _count(None)
    max_bytes: int | None = _size(None)
    max_age_ns: int | None = _age(None)
    max_inactivity_ns: int | None = _age(None)


@dataclass(frozen=True)
class StanConfig:
    """[stan]: the service for NATS Streaming clients."""

    enabled: bool = kinds.setting(kinds.flag(), False)
    cluster_id: str = kinds.setting(kinds.text(check_subject), "test-cluster")
    discover_prefix: str = kinds.setting(kinds.text(check_subject), "_STAN.discover")
    account: str = kinds.setting(kinds.text(), "$G")
    store: str = kinds.setting(kinds.choice("file", "memory"), "file")
    sync: SyncPolicy = kinds.setting(sync_policy(), SyncPolicy("always"))
    hb_interval_ns: int = _pause(limits.STAN_HEARTBEAT_INTERVAL)
    hb_timeout_ns: int = _pause(limits.STAN_HEARTBEAT_TIMEOUT)
    hb_fail_count: int = _count(limits.STAN_HEARTBEAT_FAILURES)
    replace_durable: bool = kinds.setting(kinds.flag(), False)
    max_channels: int = _count(limits.STAN_MAX_CHANNELS)  # 0 = no limit, here and below
    max_subs: int = _count(limits.STAN_MAX_SUBSCRIPTIONS)
    max_msgs: int = _count(limits.STAN_MAX_MSGS)
    max_bytes: int = _size(limits.STAN_MAX_BYTES)
    max_age_ns: int = _age(0)
    max_inactivity_ns: int = _age(0)
    adopt_topics: tuple[str, ...] = kinds.setting(kinds.texts(check_channels), ())
    channel: tuple[StanChannelConfig, ...] = ()


class Contradiction(NamedTuple):
    """A key of [stan] that does not fit the rest, and why."""

    key: str
    reason: str


def contradictions(stan: StanConfig) -> Iterator[Contradiction]:
    """What is wrong with values that are each right."""
    literal = sum(1 for entry in stan.channel if not re.search(r"[*>]", entry.pattern))
    if 0 < stan.max_channels < literal:
        reason = f"is {stan.max_channels}, but [[stan.channel]] names {literal}"
        yield Contradiction("max_channels", reason)
    if not stan.account:
        yield Contradiction("account", "is empty: $G is the account of clients without one")
    seen: set[str] = set()
    for entry in stan.channel:
        if entry.pattern in seen:
            yield Contradiction("channel", f"the pattern {entry.pattern!r} is there twice")
        seen.add(entry.pattern)
