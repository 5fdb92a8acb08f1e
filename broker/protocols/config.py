"""[bridge]: which messages cross from one protocol to another.

It stands alone because it is of no single protocol; `Access` does what it says.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol, runtime_checkable

from broker.base import settings as kinds
from broker.base.values import dataclass


@runtime_checkable
class TopicGuard(Protocol):
    """A section that may limit who uses which topic."""

    @property
    def guards_topics(self) -> bool:
        """Whether a client has to show a secret for a topic."""


@dataclass(frozen=True)
class BridgeConfig:
    """[bridge]: a switch for each crossing."""

    nsq_to_nats: bool = kinds.setting(kinds.flag(), True)
    nats_to_nsq: bool = kinds.setting(kinds.flag(), True)
    stan_to_nats: bool = kinds.setting(kinds.flag(), True)
    nats_to_stan: bool = kinds.setting(kinds.flag(), True)
    stan_to_nsq: bool | None = kinds.setting(kinds.flag_or_auto(), None)  # None: see `switches`
    nsq_to_stan: bool | None = kinds.setting(kinds.flag_or_auto(), None)

    def switches(self, *, guarded: bool) -> dict[str, bool]:
        """Each of them, on or off. "auto" is off where topics are `guarded`: clients of NATS
        Streaming cannot show a secret."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: not guarded if it is None else it for name, it in given.items()}

    @property
    def to_live(self) -> bool:
        """Whether subscribers get what is published to a topic."""
        return self.nsq_to_nats

    @property
    def from_live(self) -> bool:
        """Whether a topic gets what is published to its subject."""
        return self.nats_to_nsq
