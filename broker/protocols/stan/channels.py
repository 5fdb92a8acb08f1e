"""Channels: logs of the engine that belong to a streaming service, and their names on disk.

[bridge] decides whether logs of channels share names with NSQ topics or have separate names. If
that has changed since the last start, the logs of all channels are renamed before any log is
opened. If renaming is interrupted, the next start continues: a log with its new name is left alone.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from broker.base.durable import sync_path
from broker.engine.log.files import CURSOR_SUFFIX, CURSORS, MetaError, escape, load_meta, save_meta
from broker.engine.log.policy import LIMITS
from broker.engine.names import pattern_matches
from broker.protocols.access import APART, STAN
from broker.protocols.stan import errors
from broker.protocols.stan.publish import Channel, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.protocols.access import Access
    from broker.protocols.stan.config import StanConfig
    from broker.protocols.stan.publish import Service

log = logging.getLogger("broker.stan")

CURSOR_PREFIX = "stan:"  # of subscriptions' cursors; invalid in names of NSQ channels
MARK: Final = "names"  # file in the service's folder: the kind of names in use
_APART, _SHARED = "apart\n", "shared\n"


class Channels:
    """Creates, limits and deletes the channels of one service."""

    def __init__(self, settings: StanConfig, service: Service, engine: Engine) -> None:
        self.settings = settings
        self.service = service
        self.engine = engine
        self._by_folded: dict[str, str] = {}
        self.limited: dict[str, Channel] = {}  # channels with an inactivity limit
        # Called with a channel that another protocol has deleted.
        self.on_deleted: Callable[[Channel], object] = self.forget

    def restore(self) -> None:
        """Adopt the channels that the engine has found on disk."""
        for entry in self.engine.logs.values():
            subject = entry.name.removeprefix(APART)
            if entry.protocol == STAN and entry.name == self.service.access.log_name(subject):
                self.adopt(entry)

    def get(self, name: str) -> Channel | None:
        """The channel of that name; None if it does not exist."""
        return self.service.channels.get(name.encode())

    def open(self, name: str) -> Channel:
        """The channel of that name, created if necessary. RefusedError, OSError."""
        channel = self.get(name)
        if channel is not None and channel.log.deleted:
            self.on_deleted(channel)
            channel = self.get(name)
        if channel is not None:
            return channel
        other = self._by_folded.get(_folded(name))
        if other is not None:
            raise RefusedError(errors.STAN_CASE.format(name=name, other=other))
        if 0 < self.settings.max_channels <= len(self.service.channels):
            raise RefusedError(errors.STAN_TOO_MANY_CHANNELS)
        if name.endswith("#ephemeral"):
            raise RefusedError(errors.STAN_TEMPORARY_NAME)
        self._need_free(name)
        in_memory = self.settings.store == "memory"
        log_name = self.service.access.log_name(name)
        entry = self.engine.open_log(log_name, ephemeral=in_memory, protocol=STAN, retention=LIMITS)
        return self.adopt(entry)

    def _need_free(self, name: str) -> None:
        """RefusedError if the name is that of an NSQ topic which must stay a topic: messages of a
        topic are kept until its channels have finished them, those of a channel are not."""
        entry = self.engine.log(self.service.access.log_name(name))
        if entry is None or entry.protocol == STAN or not (entry.cursors or entry.next_seq > 1):
            return
        if not any(pattern_matches(pattern, name) for pattern in self.settings.adopt_topics):
            raise RefusedError(errors.STAN_IS_TOPIC.format(name=name))
        log.info("the topic %s becomes a channel", name)

    def adopt(self, entry: Log) -> Channel:
        """Make a log available as a channel."""
        channel = Channel(self.service, entry)
        entry.call_when_unused(None)  # a channel in memory outlives its last subscription
        if "sync" not in entry.settings:
            entry.set_sync(self.settings.sync.policy)
        entry.deliver_durable()  # subscribers remember seqs, so only durable ones may be sent
        entry.connect(*self.service.access.crossings(entry))
        limits = channel.limits = self.settings.limits_for(channel.name)
        self.limit(channel)
        self._by_folded[_folded(channel.name)] = channel.name
        if limits.max_inactivity_ns:
            self.limited[channel.name] = channel
        return channel

    def limit(self, channel: Channel) -> None:
        """Apply the channel's limits. Messages that other cursors than subscriptions have not
        acknowledged are kept, so this is called again after the subscriptions are known."""
        limits = channel.limits
        channel.limit(limits.max_msgs, limits.max_bytes, limits.max_age_ns)

    def delete(self, channel: Channel) -> None:
        """Delete a channel that was inactive for too long. OSError: nothing changed."""
        self.engine.delete_log(channel.log.name)
        self.forget(channel)

    def forget(self, channel: Channel) -> None:
        """Remove a channel whose log was deleted."""
        self.service.forget(channel)
        self._by_folded.pop(_folded(channel.name), None)
        self.limited.pop(channel.name, None)
        if channel.log.retention.limiter is not None:
            channel.log.retention.limiter.close()

    def has_other_readers(self, channel: Channel) -> bool:
        """Whether the channel has readers other than streaming subscriptions."""
        own = {subscription.cursor.name for subscription in channel.subscriptions}
        return any(name not in own for name in channel.log.cursors)


def _folded(name: str) -> str:
    """The name in lower case as Go writes it: each character becomes a single one."""
    return name.lower() if name.isascii() else "".join(each.lower()[0] for each in name)


def reason_of(problem: OSError) -> str:
    """The error for a client whose request cannot be stored."""
    reason = os.strerror(problem.errno) if problem.errno else str(problem)
    return errors.STAN_STORE.format(reason=reason)


# --- names on disk


class NamesError(OSError):
    """Channels cannot have the names that [bridge] requires; the text says what to do."""


def name_channels(logs: Path, folder: Path, access: Access) -> None:
    """Rename channels below `logs` as [bridge] requires. OSError; NamesError: nothing changed.

    If the metadata of some logs cannot be read now, the next start continues with these.
    """
    wanted = _APART if access.is_apart else _SHARED
    mark = folder / MARK
    if (mark.read_text() if mark.exists() else _SHARED) == wanted:
        return
    found, unread = _channels(logs) if logs.exists() else ([], 0)
    for channel, meta in found:
        _check(logs, channel, meta, access)
    for channel, meta in found:
        _rename(logs, channel, meta, access)
    if found:
        sync_path(logs)
    if unread:
        return
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(wanted)
    sync_path(mark)
    sync_path(folder)


def _channels(logs: Path) -> tuple[list[tuple[Path, dict[str, Any]]], int]:
    """The folder and metadata of each channel, and the number of logs that could not be read now.
    Damaged metadata are reported when the log is opened."""
    found = []
    unread = 0
    for channel in sorted(logs.iterdir()):
        try:
            meta = load_meta(str(channel)) if channel.is_dir() else None
        except MetaError:
            continue
        except OSError as problem:
            log.warning("the next start gives a log its name, if it is a channel: %s", problem)
            unread += 1
            continue
        if meta is not None and meta.get("face") == STAN:
            found.append((channel, meta))
    return found, unread


def _new_name(meta: dict[str, Any], access: Access) -> str:
    return access.log_name(str(meta["name"]).removeprefix(APART))


def _check(logs: Path, channel: Path, meta: dict[str, Any], access: Access) -> None:
    name = _new_name(meta, access)
    target = logs / escape(name)
    if target != channel and target.exists():
        raise NamesError(
            f"a topic and a channel of NATS Streaming are both called {name}: delete one of them,"
            " or keep both with [bridge] stan_to_nsq = false and nsq_to_stan = false"
        )
    cursors = channel / CURSORS
    own = escape(CURSOR_PREFIX)
    others = [
        entry.name.removesuffix(CURSOR_SUFFIX)
        for entry in (cursors.iterdir() if cursors.exists() else ())
        if entry.name.endswith(CURSOR_SUFFIX) and not entry.name.startswith(own)
    ]
    if access.is_apart and others:
        raise NamesError(
            f"channels of NATS Streaming are to be separate from NSQ topics, but {meta['name']} has"
            f" NSQ channels ({', '.join(sorted(others))}) too: start with [bridge]"
            " stan_to_nsq = true and nsq_to_stan = true, and delete them, or keep that setting"
        )


def _rename(logs: Path, channel: Path, meta: dict[str, Any], access: Access) -> None:
    name = _new_name(meta, access)
    if meta["name"] != name:
        kept = {key: value for key, value in meta.items() if key not in ("version", "name")}
        save_meta(str(channel), {"name": name, **kept}, durable=True)
    target = logs / escape(name)
    if target != channel:
        channel.rename(target)
        log.info("the log of channel %s was renamed to %s", name.removeprefix(APART), name)
