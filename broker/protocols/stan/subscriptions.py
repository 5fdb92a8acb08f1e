"""Subscriptions: their start positions, queue groups, durables.

A plain or durable subscription has a cursor of its own; the members of a queue group share one. A
durable without a client stays in `Channel.subscriptions`, offline; so does the last member of a
durable group.
"""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.base.logs import fields
from broker.base.values import dataclass
from broker.engine.bulk.ranges import TimeSearch
from broker.engine.cursor.cursor import cursors_of, open_cursor
from broker.engine.log.files import escape
from broker.protocols.stan import errors
from broker.protocols.stan.channels import CURSOR_PREFIX
from broker.protocols.stan.clients import random_name
from broker.protocols.stan.config import is_subject_to_send
from broker.protocols.stan.publish import Client, RefusedError, Subscription
from broker.protocols.stan.store import SubRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.protocols.stan import stan_pb2 as pb
    from broker.protocols.stan.channels import Channels
    from broker.protocols.stan.config import StanConfig
    from broker.protocols.stan.publish import Channel
    from broker.protocols.stan.store import Store

log = logging.getLogger("broker.stan")

_NAME_MAX = 200  # bytes of a cursor's file name; longer names are hashed


def check_request(request: pb.SubscriptionRequest, is_valid: Callable[[str], bool]) -> None:
    """Raise RefusedError for an invalid request, with the checks in the original's order."""
    from broker.protocols.stan import stan_pb2 as pb

    if not request.clientID:
        raise RefusedError(errors.STAN_NO_CLIENT_ID)
    if request.ackWaitInSecs < 1:
        raise RefusedError(errors.STAN_INVALID_ACK_WAIT)
    if request.maxInFlight < 1:
        raise RefusedError(errors.STAN_INVALID_IN_FLIGHT)
    if not 0 <= request.startPosition <= pb.First:
        raise RefusedError(errors.STAN_INVALID_START)
    if not is_valid(request.subject):
        raise RefusedError(errors.STAN_INVALID_SUBJECT)
    if request.qGroup and ":" in request.durableName:
        raise RefusedError(errors.STAN_DURABLE_QUEUE_NAME)
    if not is_subject_to_send(request.inbox):
        raise RefusedError(errors.STAN_INVALID_SUBSCRIBE)


def group_key(request: pb.SubscriptionRequest) -> str:
    """The key of a queue group; empty = no group. A plain group may have the name of a durable."""
    if request.qGroup and request.durableName:
        return f"{request.durableName}:{request.qGroup}"
    return str(request.qGroup)


def cursor_name(*parts: str) -> str:
    """The name of a cursor, short enough for a file."""
    name = CURSOR_PREFIX + ":".join(parts)
    if len(escape(name)) > _NAME_MAX:
        name = f"{CURSOR_PREFIX}{parts[0]}:{hashlib.sha256(name.encode()).hexdigest()}"
    return name


def _signed(number: int) -> int:
    """The number as a signed one of 64 bits, in which too large ones are negative."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class SearchNeededError(Exception):
    """The start position must be searched on disk first."""


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A client's request to subscribe."""

    client: Client
    request: pb.SubscriptionRequest
    found: int | None = None  # the sequence for a start by time, when known


class Subscriptions:
    """The subscriptions of one service."""

    def __init__(self, settings: StanConfig, channels: Channels, store: Store) -> None:
        self.settings = settings
        self.channels = channels
        self.store = store

    # --- subscribing

    def add(self, wanted: SubscribeRequest) -> Subscription:
        """Create or resume a subscription; `attach` starts deliveries after the client's answer.

        SearchNeededError if `found` is needed. RefusedError, OSError: nothing changed.
        """
        request = wanted.request
        channel = self.channels.open(request.subject)
        key = group_key(request)
        if key:
            return self._join_group(channel, wanted, key)
        if request.durableName:
            return self._open_durable(channel, wanted)
        return self._make(channel, wanted, "", cursor_name("p", random_name()))

    def _join_group(self, channel: Channel, wanted: SubscribeRequest, key: str) -> Subscription:
        name = cursor_name("q", key)
        member = channel.subscriptions.first_of(name)
        if member is not None and member.is_offline:  # it is the only one of a durable group
            return self._resume(member, wanted)
        return self._make(channel, wanted, key, name)

    def _open_durable(self, channel: Channel, wanted: SubscribeRequest) -> Subscription:
        name = cursor_name("d", wanted.client.client_id, wanted.request.durableName)
        subscription = channel.subscriptions.first_of(name)
        if subscription is None:
            return self._make(channel, wanted, "", name)
        if not subscription.is_offline:
            if not self.settings.replace_durable:
                raise RefusedError(errors.STAN_DUPLICATE_DURABLE)
            self.leave(subscription)
        return self._resume(subscription, wanted)

    def _resume(self, subscription: Subscription, wanted: SubscribeRequest) -> Subscription:
        resumed = replace(
            subscription.record,
            client_id=wanted.client.client_id,
            inbox=wanted.request.inbox,
            ack_inbox=f"_INBOX.{random_name()}",
            max_in_flight=wanted.request.maxInFlight,
            ack_wait=wanted.request.ackWaitInSecs,
            offline=False,
        )
        self.store.put_sub(resumed)
        subscription.record = resumed
        return subscription

    def _make(
        self, channel: Channel, wanted: SubscribeRequest, key: str, name: str
    ) -> Subscription:
        request = wanted.request
        if 0 < channel.limits.max_subs <= len(channel.subscriptions):
            raise RefusedError(errors.STAN_TOO_MANY_SUBSCRIPTIONS)
        cursor = cursors_of(channel.log).get(name)
        joins = cursor is not None and channel.subscriptions.count_of(name) > 0
        if cursor is not None and not joins:
            channel.log.delete_cursor(name)  # it belongs to a subscription that is not in the file
            cursor = None
        if cursor is None:
            start = self.start_of(channel, request, wanted.found)
            try:
                cursor = open_cursor(channel.log, name, start=start)
            except OSError:
                channel.log.delete_cursor(name)  # the cursor may exist without an entry
                raise
        record = SubRecord(
            self.store.next_number,
            channel.name,
            name,
            wanted.client.client_id,
            request.inbox,
            f"_INBOX.{random_name()}",
            request.durableName,
            key,
            request.maxInFlight,
            request.ackWaitInSecs,
            start=int(cursor.next_seq),
        )
        try:
            self.store.put_sub(record)
        except OSError:
            if not joins:
                channel.log.delete_cursor(name)
            raise
        subscription = Subscription(channel, cursor, record)
        channel.subscriptions.add(subscription)
        return subscription

    def start_of(
        self, channel: Channel, request: pb.SubscriptionRequest, found: int | None = None
    ) -> int:
        """The sequence of the first message for a new subscription."""
        from broker.protocols.stan import stan_pb2 as pb

        first, end = channel.first_available, channel.log.visible
        match request.startPosition:
            case pb.LastReceived:
                return max(first, end - 1) if first < end else end
            case pb.First:
                return first
            case pb.SequenceStart:
                sequence = int(request.startSequence)
                return end if sequence >= end else max(first, sequence)
            case pb.TimeDeltaStart:
                if found is None:
                    raise SearchNeededError
                return max(first, min(found, end))
        return end

    def search(self, request: pb.SubscriptionRequest) -> Callable[[], int]:
        """A function that finds the position for a start by time; runs on any thread. OSError."""
        channel = self.channels.open(request.subject)
        # as in the original, a moment beyond the last one is before all
        moment = _signed(time.time_ns() - request.startTimeDelta)
        search = TimeSearch(channel.log)
        return lambda: search.find(moment)

    def restore(self, record: SubRecord) -> Subscription | None:
        """Restore a subscription from the file, offline; None if its channel was deleted."""
        channel = self.channels.get(record.channel)
        if channel is None:
            return None
        start = max(channel.first_available, min(record.start, channel.log.visible))
        cursor = open_cursor(channel.log, record.cursor, start=start)
        subscription = Subscription(channel, cursor, record)
        channel.subscriptions.add(subscription)
        return subscription

    def drop_unknown(self, channel: Channel) -> None:
        """Delete cursors of subscriptions that are not in the file, which a kill between the two
        writes leaves. They would count as readers for ever."""
        known = {subscription.cursor.name for subscription in channel.subscriptions}
        for name in list(channel.log.cursors):
            if name.startswith(CURSOR_PREFIX) and name not in known:
                log.warning(
                    "recovered: a subscription that is not remembered is dropped",
                    extra=fields(channel=channel.name, cursor=name),
                )
                channel.log.delete_cursor(name)

    # --- leaving

    def find(self, channel: Channel, inbox: str) -> Subscription:
        """The subscription with this ack inbox or inbox. RefusedError."""
        subscription = channel.subscriptions.find(inbox)
        if subscription is None:
            raise RefusedError(errors.STAN_INVALID_SUBSCRIPTION)
        return subscription

    def leave(self, subscription: Subscription, *, erase: bool = False) -> None:
        """Remove the client of a subscription; a durable one stays unless `erase`. OSError: it is
        done, but not yet in the file."""
        record, channel = subscription.record, subscription.channel
        subscription.detach()
        alone = channel.subscriptions.count_of(record.cursor) == 1
        if record.is_durable and alone and not erase:
            kept = replace(record, offline=True)
            subscription.record = kept
            self.store.release_sub(kept)
            return
        channel.subscriptions.remove(subscription)
        try:
            self.store.remove_sub(record)
        finally:
            if alone:
                channel.log.delete_cursor(record.cursor)

    def drop(self, channel: Channel) -> None:
        """Remove all subscriptions of a deleted channel. OSError: not yet from the file."""
        dropped = list(channel.subscriptions)
        channel.subscriptions.clear()
        for subscription in dropped:
            subscription.detach()
        self._remove([subscription.record for subscription in dropped])

    def move(self, channel: Channel) -> None:
        """Continue the subscriptions of a channel that was deleted while it had subscribers. The
        protocol cannot report that to them, so those with clients go to a new channel of that name.
        It continues the sequences, because old messages may still be acknowledged. OSError,
        RefusedError."""
        users = [(each.record, each.client) for each in channel.subscriptions]
        for subscription in channel.subscriptions:
            subscription.detach()
        channel.subscriptions.clear()
        left = {record.number: record for record, _ in users}
        try:
            for record, client in users:
                if client is not None:
                    self._resume_in_new(channel, record).attach(client)
                    del left[record.number]
        finally:
            self._remove(left.values())

    def _remove(self, records: Iterable[SubRecord]) -> None:
        """Remove all of these. OSError, after the last: the file does not know it yet."""
        failed: OSError | None = None
        for record in records:
            try:
                self.store.remove_sub(record)
            except OSError as problem:
                failed = problem
        if failed is not None:
            raise failed

    def _resume_in_new(self, deleted: Channel, record: SubRecord) -> Subscription:
        channel = self.channels.open(deleted.name)
        if channel.log.next_seq == 1 < deleted.log.next_seq:
            channel.log.skip_to(deleted.log.next_seq)
        cursor = open_cursor(channel.log, record.cursor, start=channel.first_available)
        subscription = Subscription(channel, cursor, record)
        channel.subscriptions.add(subscription)
        return subscription
