"""[bridge]: which messages are passed from one protocol to another.

It is separate because it belongs to no single protocol; `Access` enforces it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol, runtime_checkable

from broker.base import settings as kinds
from broker.base.values import dataclass


@runtime_checkable
class TopicGuard(Protocol):
    """A section that can restrict the topics of each client."""

    @property
    def guards_topics(self) -> bool:
        """Whether clients need a secret to use a topic."""


@dataclass(frozen=True)
class BridgeConfig:
    """[bridge]: one switch for each direction."""

    nsq_to_nats: bool = kinds.setting(kinds.flag(), True)
    nats_to_nsq: bool = kinds.setting(kinds.flag(), True)
    stan_to_nats: bool = kinds.setting(kinds.flag(), True)
    nats_to_stan: bool = kinds.setting(kinds.flag(), True)
    stan_to_nsq: bool | None = kinds.setting(kinds.flag_or_auto(), None)  # None: see `switches`
    nsq_to_stan: bool | None = kinds.setting(kinds.flag_or_auto(), None)

    def switches(self, *, guarded: bool) -> dict[str, bool]:
        """The value of each switch. "auto" is off if topics are `guarded`: clients of NATS
        Streaming cannot send a secret."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: not guarded if it is None else it for name, it in given.items()}

    @property
    def to_live(self) -> bool:
        """Whether NATS subscribers receive messages published to a topic."""
        return self.nsq_to_nats

    @property
    def from_live(self) -> bool:
        """Whether a topic stores messages published to its subject."""
        return self.nats_to_nsq
