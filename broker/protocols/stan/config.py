"""What NATS Streaming is told: names, heartbeats, and the limits of each channel.

Overrides are for names with wildcards. Those that match a channel stand in a row from wide to
narrow, compared token by token: `>` is wider than `*`, `*` than a word. The last of the row holds;
what it leaves open (None) it takes from the one before it, the first from the limits of all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final, Literal

from broker.protocols.nats import limits as nats_limits
from broker.protocols.stan import limits


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Of one channel; 0 = no limit."""

    max_msgs: int = limits.STAN_MAX_MSGS
    max_bytes: int = limits.STAN_MAX_BYTES
    max_age_ns: int = 0
    max_subs: int = limits.STAN_MAX_SUBSCRIPTIONS
    max_inactivity_ns: int = 0


@dataclass(frozen=True, slots=True)
class ChannelOverride:
    """What differs for the channels of a pattern; None = as the next wider pattern says."""

    max_msgs: int | None = None
    max_bytes: int | None = None
    max_age_ns: int | None = None
    max_subs: int | None = None
    max_inactivity_ns: int | None = None

    def over(self, wider: ChannelLimits) -> ChannelLimits:
        """The limits that hold where this override does."""
        values = {}
        for each in fields(self):
            own = getattr(self, each.name)
            values[each.name] = getattr(wider, each.name) if own is None else own
        return ChannelLimits(**values)


@dataclass(frozen=True, slots=True)
class StanSettings:
    """Everything the service is told."""

    cluster_id: str = "test-cluster"
    discover_prefix: str = "_STAN.discover"
    account: str = "$G"  # whose clients are served
    store: Literal["memory", "file"] = "memory"
    sync: str | float = "always"  # or "none", or a period in seconds
    replace_durable: bool = False  # a second use of a durable takes it over, instead of an error
    hb_interval_ns: int = limits.STAN_HEARTBEAT_INTERVAL
    hb_timeout_ns: int = limits.STAN_HEARTBEAT_TIMEOUT
    hb_fail_count: int = limits.STAN_HEARTBEAT_FAILURES
    max_channels: int = limits.STAN_MAX_CHANNELS  # 0 = no limit
    limits: ChannelLimits = ChannelLimits()
    channels: tuple[tuple[str, ChannelOverride], ...] = ()  # pattern -> what differs
    adopt_topics: tuple[str, ...] = ()  # patterns of topics that become channels by being named

    def limits_for(self, channel: str) -> ChannelLimits:
        """What holds for this channel, whether it exists or not."""
        row = self._row(channel)
        return self._resolved(row[-1]) if row else self.limits

    def patterns(self) -> tuple[tuple[str, ChannelLimits], ...]:
        """Every pattern with an override, from wide to narrow, and the limits that hold there."""
        overrides = dict(self.channels)
        return tuple((name, self._resolved(name)) for name in sorted(overrides, key=_width))

    def _row(self, name: str) -> list[str]:
        return sorted((p for p in dict(self.channels) if covers(p, name)), key=_width)

    def _resolved(self, pattern: str) -> ChannelLimits:
        row = self._row(pattern)
        place = row.index(pattern)
        wider = self._resolved(row[place - 1]) if place else self.limits
        return dict(self.channels)[pattern].over(wider)


_RANK = {">": 0, "*": 1}


def _width(pattern: str) -> tuple[tuple[int, str], ...]:
    return tuple((_RANK.get(token, 2), token) for token in pattern.split("."))


def covers(pattern: str, name: str) -> bool:
    """Whether a pattern matches a channel, or is as wide as another pattern."""
    wanted, tokens = pattern.split("."), name.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    if len(wanted) != len(tokens):
        return False
    return all(want in ("*", token) for want, token in zip(wanted, tokens, strict=True))


_WORD: Final = re.compile(r"[^\x00-\x20]*")


def is_speakable(inbox: str) -> bool:
    """Whether messages can be sent there: NATS has no way to write a subject with white space."""
    return _WORD.fullmatch(inbox) is not None and (
        len(inbox.encode()) <= nats_limits.NATS_MAX_CONTROL_LINE
    )


def is_valid_channel(name: str, *, wildcards: bool = False) -> bool:
    """Whether a channel may be called so: tokens that are not empty, no `/`, no wildcards."""
    tokens = name.split(".")
    if "" in tokens or "/" in name or len(name.encode()) > nats_limits.NATS_MAX_CONTROL_LINE:
        return False
    if not wildcards:
        return "*" not in name and ">" not in name
    if ">" in tokens[:-1]:
        return False
    return all(word in _RANK for word in tokens if "*" in word or ">" in word)
