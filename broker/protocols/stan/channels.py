"""Channels: logs of the engine that a streaming service calls its own."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from broker.protocols.access import APART, FACE
from broker.protocols.stan import errors
from broker.protocols.stan.config import covers
from broker.protocols.stan.publish import Channel, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.protocols.stan.config import StanSettings
    from broker.protocols.stan.publish import Service

log = logging.getLogger("broker.stan")


class Channels:
    """Makes, limits and deletes the channels of one service."""

    def __init__(self, settings: StanSettings, service: Service, engine: Engine) -> None:
        self.settings = settings
        self.service = service
        self.engine = engine
        self._by_folded: dict[str, str] = {}
        self.limited: dict[str, Channel] = {}  # those that go when nobody uses them
        self.on_gone: Callable[[Channel], object] = self.forget  # deleted through another door

    def restore(self) -> None:
        """Those that the engine has found on the disk."""
        for entry in self.engine.logs.values():
            subject = entry.name.removeprefix(APART)
            if entry.face == FACE and entry.name == self.service.access.log_name(subject):
                self.adopt(entry)

    def get(self, name: str) -> Channel | None:
        """The channel of that name, if there is one."""
        return self.service.channels.get(name.encode())

    def open(self, name: str) -> Channel:
        """The channel of that name, made if need be. RefusedError, OSError."""
        channel = self.get(name)
        if channel is not None and channel.log.deleted:
            self.on_gone(channel)
            channel = self.get(name)
        if channel is not None:
            return channel
        other = self._by_folded.get(name.casefold())
        if other is not None:
            raise RefusedError(errors.STAN_CASE.format(name=name, other=other))
        if 0 < self.settings.max_channels <= len(self.service.channels):
            raise RefusedError(errors.STAN_TOO_MANY_CHANNELS)
        if name.endswith("#ephemeral"):
            raise RefusedError(errors.STAN_TEMPORARY_NAME)
        self._need_free(name)
        in_memory = self.settings.store == "memory"
        log_name = self.service.access.log_name(name)
        return self.adopt(self.engine.open_log(log_name, ephemeral=in_memory, face=FACE))

    def _need_free(self, name: str) -> None:
        """RefusedError when the name is that of an NSQ topic which must stay one: its messages
        are kept until its channels have finished them, those of a channel are not."""
        entry = self.engine.log(self.service.access.log_name(name))
        if entry is None or entry.face == FACE or not (entry.cursors or entry.next_seq > 1):
            return
        if not any(covers(pattern, name) for pattern in self.settings.adopt_topics):
            raise RefusedError(errors.STAN_IS_TOPIC.format(name=name))
        log.info("the topic %s becomes a channel", name)

    def adopt(self, entry: Log) -> Channel:
        """Make a channel of a log that is one."""
        channel = Channel(self.service, entry)
        entry.on_unused = None  # a channel in memory outlives its last subscription
        if "sync" not in entry.settings:
            entry.set_policy(self.settings.sync)
        entry.deliver_durable()  # subscribers keep the seqs of what they were given
        entry.connect(*self.service.access.crossings(entry))
        limits = channel.limits = self.settings.limits_for(channel.name)
        self.limit(channel)
        self._by_folded[channel.name.casefold()] = channel.name
        if limits.max_inactivity_ns:
            self.limited[channel.name] = channel
        return channel

    def limit(self, channel: Channel) -> None:
        """Keep to its limits. What other cursors than subscriptions have not acked stays, so this
        comes again when it is known which these are."""
        limits = channel.limits
        channel.limit(limits.max_msgs, limits.max_bytes, limits.max_age_ns)

    def delete(self, channel: Channel) -> None:
        """It has been inactive for too long. OSError: nothing has changed."""
        self.engine.delete_log(channel.log.name)
        self.forget(channel)

    def forget(self, channel: Channel) -> None:
        """Its log is gone."""
        self.service.forget(channel)
        self._by_folded.pop(channel.name.casefold(), None)
        self.limited.pop(channel.name, None)
        if channel.log.limiter is not None:
            channel.log.limiter.close()

    def has_other_readers(self, channel: Channel) -> bool:
        """Whether somebody reads it who is no streaming subscriber."""
        own = {subscription.cursor.name for subscription in channel.subscriptions}
        return any(name not in own for name in channel.log.cursors)


def reason_of(problem: OSError) -> str:
    """Why something cannot be stored, in the words of a client's answer."""
    reason = os.strerror(problem.errno) if problem.errno else str(problem)
    return errors.STAN_STORE.format(reason=reason)
