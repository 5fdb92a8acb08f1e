"""A NATS Streaming server inside a NATS server: its parts, start, housekeeping, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from broker.base.units import MS, SECOND
from broker.protocols.access import STAN
from broker.protocols.stan import errors, limits
from broker.protocols.stan.channels import Channels
from broker.protocols.stan.clients import Clients, random_name
from broker.protocols.stan.config import Subjects
from broker.protocols.stan.publish import KINDS, RefusedError, Service
from broker.protocols.stan.store import Store
from broker.protocols.stan.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.engine.engine import Engine
    from broker.protocols.access import Access
    from broker.protocols.nats.server import NatsServer
    from broker.protocols.stan.config import StanConfig
    from broker.protocols.stan.publish import Channel, Client, Request, Subscription
    from broker.protocols.stan.requests import Requests
    from broker.protocols.stan.store import SubRecord

log = logging.getLogger("broker.stan")


class Streaming:
    """The streaming service of one cluster id."""

    def __init__(
        self,
        settings: StanConfig,
        engine: Engine,
        nats: NatsServer,
        folder: Path | None,
        access: Access,
    ) -> None:
        """`folder`: of the file of clients; None = in memory. OSError, ForeignStateError,
        ValueError if the account does not exist."""
        account = nats.bus(settings.account)
        if account is None:
            raise ValueError(f"NATS Streaming: there is no account {settings.account!r}")
        self.settings = settings
        self.server_id = random_name()
        self.start_ns = time.time_ns()
        self.subjects = Subjects(settings.cluster_id, settings.discover_prefix)
        self.store = Store(
            None if settings.store == "memory" else folder,
            settings.cluster_id,
            waits=settings.sync.mode == "always",
        )
        self.service = Service(account, engine, access, self._handle, self._make_channel)
        self.client_table = Clients(settings, self.service, self.store, self._client_closed)
        self.channel_table = Channels(settings, self.service, engine)
        self.channel_table.on_deleted = self._channel_deleted
        self.subscriptions = Subscriptions(settings, self.channel_table, self.store)
        self.requests: Requests | None = None  # made for the first one
        self._account = partial(nats.bus, settings.account)
        self._is_lost = False  # its account was removed or created again
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0  # index at which the next check of channels begins

    # --- start and end

    async def start(self) -> None:
        """Restore clients and subscriptions, then subscribe to requests."""
        for problem in self.store.problems:
            log.warning("recovered: %s", problem)
        self.channel_table.restore()
        subjects = {kind: getattr(self.subjects, kind, "").encode() for kind in KINDS}
        subjects["reply"] = self.client_table.reply_subject
        self._restore()
        self.service.listen(self.subjects.publish.encode(), [subjects[kind] for kind in KINDS])
        self.service.engine.watch(self._log_changed)
        self.maintain()

    def _restore(self) -> None:
        for known in list(self.store.clients.values()):
            self.client_table.restore(known)
        self._restore_all(list(self.store.subs.values()))
        for channel in self.service.channels.values():
            self._drop_unknown(channel)
            self.channel_table.limit(channel)

    def _restore_all(self, records: list[SubRecord]) -> None:
        """Restore subscriptions; one whose channel is quarantined waits for the channel. All are
        there before any leaves: the last member of a group takes the group along."""
        found: list[Subscription] = []
        for record in records:
            with self._logged(record):
                subscription = self._restore_one(record)
                if subscription is not None:
                    found.append(subscription)
        for subscription in found:
            with self._logged(subscription.record):
                self._resume_deliveries(subscription)

    @contextlib.contextmanager
    def _logged(self, record: SubRecord) -> Iterator[None]:
        """Log what hinders one subscription, a full disk, say, and go on with the others."""
        try:
            yield
        except (OSError, RefusedError) as problem:
            log.error("subscription %s of %s: %s", record.number, record.channel, problem)

    def _drop_unknown(self, channel: Channel) -> None:
        if channel.log.cursors and not self.store.problems:
            try:
                self.subscriptions.drop_unknown(channel)
            except OSError as problem:
                log.error("channel %s: %s", channel.name, problem)

    def _restore_one(self, record: SubRecord) -> Subscription | None:
        subscription = self.subscriptions.restore(record)
        if subscription is None:
            # A channel that is quarantined, or has lost its metadata, may be repaired.
            engine = self.service.engine
            log_name = self.service.access.log_name(record.channel)
            if log_name not in engine.quarantined and engine.log(log_name) is None:
                self.store.remove_sub(record)
        return subscription

    def _resume_deliveries(self, subscription: Subscription) -> None:
        """Resume the deliveries to a restored subscription, if its client is known."""
        record = subscription.record
        client = self.service.clients.get(record.client_id.encode())
        if not record.offline and client is not None:
            subscription.attach(client)
        elif not record.offline:
            self.subscriptions.leave(subscription)

    async def stop(self) -> None:
        """End the service; its stored state remains."""
        if self._timer is not None:
            self._timer.cancel()
            self.service.engine.unwatch(self._log_changed)
        self.client_table.stop()
        self.service.close()
        searches = [] if self.requests is None else list(self.requests.tasks)
        for task in searches:
            task.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
        for channel in self.channels.values():
            for subscription in channel.subscriptions:
                subscription.detach()
        await self.store.close()

    def maintain(self) -> None:
        """Sync the file of clients, delete inactive channels, and repeat within a second."""
        loop = asyncio.get_running_loop()
        pause = limits.STAN_HOUSEKEEPING
        self.store.sync_soon()
        self._look_for_account()
        for channel in self._some_channels():
            inactive_ns = channel.limits.max_inactivity_ns
            pause = min(pause, max(inactive_ns // 4, MS))
            if self._is_used(channel):
                channel.active = loop.time()
            elif (loop.time() - channel.active) * SECOND >= inactive_ns:
                self._delete(channel)
        self._timer = loop.call_later(pause / SECOND, self.maintain)

    def _look_for_account(self) -> None:
        """Log an error if a reload has removed the account, which clients need."""
        lost, before = self._account() is not self.service.account, self._is_lost
        self._is_lost = lost
        if lost and not before:
            log.error("%s", errors.STAN_ACCOUNT_GONE.format(self.settings.account))

    def _some_channels(self) -> list[Channel]:
        """Channels to check for inactivity; only a part if there are very many."""
        limited = self.channel_table.limited
        at = self._looked_at if self._looked_at < len(limited) else 0
        self._looked_at = at + limits.STAN_HOUSEKEEPING_CHANNELS
        return list(limited.values())[at : self._looked_at] if limited else []

    def _is_used(self, channel: Channel) -> bool:
        return (
            channel.has_new_messages()
            or channel.active == 0
            or channel.log.unclaimed
            or any(not subscription.is_offline for subscription in channel.subscriptions)
            or self.channel_table.has_other_readers(channel)
        )

    def _delete(self, channel: Channel) -> None:
        try:
            self.channel_table.delete(channel)
            self.subscriptions.drop(channel)
        except OSError as problem:
            log.error("channel %s cannot be deleted: %s", channel.name, problem)
        else:
            log.info("channel %s was inactive and is deleted", channel.name)

    def _log_changed(self, name: str, cursor: str | None, made: bool) -> None:
        """Handle the creation or deletion of a log or cursor."""
        channel = self.channel_table.get(name.rpartition("/")[2])
        if cursor is None and not made and channel is not None and channel.log.name == name:
            asyncio.get_running_loop().call_soon(self._channel_deleted, channel)
        if cursor is None and made and channel is None:
            asyncio.get_running_loop().call_soon(self._log_found, name)

    def _log_found(self, name: str) -> None:
        """Adopt a log that was created, or opened after quarantine, if it is a channel."""
        entry = self.service.engine.log(name)
        subject = name.rpartition("/")[2]
        if (
            entry is None
            or entry.protocol != STAN
            or self.channel_table.get(subject) is not None
            or (name != self.service.access.log_name(subject))
        ):
            return
        channel = self.channel_table.adopt(entry)
        self._restore_all([each for each in self.store.subs.values() if each.channel == subject])
        self._drop_unknown(channel)
        self.channel_table.limit(channel)

    def _channel_deleted(self, channel: Channel) -> None:
        """Handle the deletion of a channel's log by another protocol."""
        if self.channel_table.get(channel.name) is not channel or not channel.log.deleted:
            return
        self.channel_table.forget(channel)
        try:
            self.subscriptions.move(channel)
        except (OSError, RefusedError) as problem:
            log.error("channel %s: %s", channel.name, problem)

    # --- callbacks of the parts

    def _handle(self, request: Request) -> None:
        if self.requests is None:
            from broker.protocols.stan.requests import Requests

            self.requests = Requests(
                self.subjects,
                self.service,
                self.client_table,
                self.channel_table,
                self.subscriptions,
            )
        self.requests.handle(request)

    def _make_channel(self, name: str) -> Channel:
        return self.channel_table.open(name)

    def _client_closed(self, client: Client) -> None:
        for subscription in list(client.subscriptions):
            try:
                self.subscriptions.leave(subscription)
            except OSError as problem:
                log.error("client %s: %s", client.client_id, problem)

    # --- monitoring

    @property
    def clients(self) -> dict[str, Client]:
        """The clients by id."""
        return {client.client_id: client for client in self.service.clients.values()}

    @property
    def channels(self) -> dict[str, Channel]:
        """The channels by name."""
        return {channel.name: channel for channel in self.service.channels.values()}

    @property
    def in_msgs(self) -> int:
        """The number of messages published by clients."""
        return self.service.in_msgs

    @property
    def in_bytes(self) -> int:
        """The bytes of messages published by clients."""
        return self.service.in_bytes

    @property
    def out_msgs(self) -> int:
        """The number of messages sent to subscriptions."""
        return self.service.out_msgs

    @property
    def out_bytes(self) -> int:
        """The bytes of messages sent to subscriptions."""
        return self.service.out_bytes
