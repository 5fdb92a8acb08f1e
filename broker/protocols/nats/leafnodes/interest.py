"""Interest: the subscriptions of an account that its links announce to their peers.

A key is a subject, or a subject and a queue group. It is announced when its first subscription is
added, and withdrawn when its last one is removed; a group is announced whenever the number of its
members changes. A hub announces to a leaf the subscriptions of all others; a leaf announces to its
hub only those of its own clients and of its own leafs. A peer does not receive its own
subscriptions, nor those of a leaf of the same cluster; an isolated peer receives those of no leaf
and no hub. Source: nats-server leafnode.go initLeafNodeSmapAndSendSubs, updateSmap.

Keys are kept in buckets by their hash. A new peer receives one bucket after the other, over several
turns; changes in a bucket that it has not received yet are not sent to it.
"""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING, Final

from broker.protocols.nats.accounts.imports import Shadow
from broker.protocols.nats.leafnodes import limits
from broker.protocols.nats.leafnodes.session import LeafSession

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from broker.protocols.nats.accounts.account import Account
    from broker.runtime.interfaces import Sink

LOOP_PREFIX: Final = b"$LDS."
_LETTERS: Final = string.digits + string.ascii_letters
_LOOP_LETTERS: Final = 22


def _key(subject: bytes, queue: bytes) -> bytes:
    return subject + b" " + queue if queue else subject


def line(key: bytes, count: int) -> bytes:
    """The protocol line with the current number of a key's subscriptions."""
    if count <= 0:
        return b"LS- " + key + b"\r\n"
    return b"LS+ %b %d\r\n" % (key, count) if b" " in key else b"LS+ " + key + b"\r\n"


class Tally:
    """The number of subscriptions of each key."""

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        self.buckets: dict[int, dict[bytes, int]] = {}

    def get(self, key: bytes) -> int:
        bucket = self.buckets.get(bucket_of(key))
        return 0 if bucket is None else bucket.get(key, 0)

    def add(self, key: bytes, delta: int) -> int:
        """Add to the count of a key; returns the new count."""
        number = bucket_of(key)
        bucket = self.buckets.get(number)
        if bucket is None:
            bucket = self.buckets[number] = {}
        count = bucket.get(key, 0) + delta
        if count:
            bucket[key] = count
            return count
        bucket.pop(key, None)
        if not bucket:
            del self.buckets[number]
        return 0


def bucket_of(key: bytes) -> int:
    """The index of a key's bucket."""
    return hash(key) % limits.NATS_LEAF_BUCKETS


class Interest:
    """The subscriptions of one account, and the links that they are announced to. They are counted
    even without a link, because counting a million subscriptions for the first link would block
    clients for seconds."""

    def __init__(self, account: Account) -> None:
        self.account = account
        letters = (secrets.choice(_LETTERS) for _ in range(_LOOP_LETTERS))
        # Only this server announces this subject: if a peer announces it, there is a loop of links.
        self.loop_subject = LOOP_PREFIX + "".join(letters).encode()
        self.links: set[LeafSession] = set()
        self._clusters: dict[str, list[LeafSession]] = {}
        self._next_bucket: dict[LeafSession, int] = {}  # the first bucket not sent to it yet
        self.local = Tally()  # subscriptions of this server
        self.leafs = Tally()  # of its leafs
        self.hubs = Tally()  # of its hubs
        self._forced: tuple[bytes, ...] = ()
        for subject, queue, _, sink, *_ in account.router.listing():
            if isinstance(sink, Shadow) and isinstance(sink.sink, LeafSession):
                self._counts_of(sink.sink).add(_key(subject, queue), 1)
            elif not isinstance(sink, LeafSession):
                self.local.add(_key(subject, queue), 1)
        self.local.add(self.loop_subject, 1)
        account.router.watch(self)

    # --- links

    def join(self, link: LeafSession) -> None:
        """Add a link: announce everything to its peer, most of it in later turns."""
        self.links.add(link)
        self._clusters.setdefault(link.peer_cluster, []).append(link)
        self._next_bucket[link] = 0
        link.send(line(self.loop_subject, 1))  # first, so that a loop is detected at once
        self.announce_more(link)

    def announce_more(self, link: LeafSession) -> bool:
        """Announce the next part of the interest to a new link; False if all is announced."""
        number = self._next_bucket.get(link)
        if number is None:
            return False
        lines: list[bytes] = []
        checked = 0
        tallies = [self.local]
        if not link.isolated:
            tallies += [self.leafs] if link.spoke else [self.leafs, self.hubs]
        while number < limits.NATS_LEAF_BUCKETS and checked < limits.NATS_LEAF_ANNOUNCE:
            for key in {key for tally in tallies for key in tally.buckets.get(number, ())}:
                checked += 1
                count = self._announced_count(link, key)
                if (
                    count > 0
                    and key != self.loop_subject
                    and (link.may_announce(key.partition(b" ")[0]))
                ):
                    lines.append(line(key, count))
            number += 1
        self._next_bucket[link] = number
        if number == limits.NATS_LEAF_BUCKETS:
            del self._next_bucket[link]
        if lines:
            link.send(b"".join(lines))
        return number < limits.NATS_LEAF_BUCKETS

    def leave(self, link: LeafSession) -> None:
        """Remove a closed link. The removal of its subscriptions removes its peer's interest."""
        if link not in self.links:
            return
        self.links.remove(link)
        self._next_bucket.pop(link, None)
        peers = self._clusters[link.peer_cluster]
        peers.remove(link)
        if not peers:
            del self._clusters[link.peer_cluster]

    def _announced_count(self, link: LeafSession, key: bytes) -> int:
        """The number of a key's subscriptions that are announced to this peer."""
        if link.isolated:
            return self.local.get(key)
        from_hubs = not link.spoke or key.startswith(LOOP_PREFIX)
        count = self.local.get(key) + self.leafs.get(key)
        if from_hubs:
            count += self.hubs.get(key)
        for peer in self._clusters[link.peer_cluster] if link.peer_cluster else (link,):
            if from_hubs or not peer.spoke:
                count -= peer.weight(key)
        return count

    def _counts_of(self, source: LeafSession) -> Tally:
        return self.hubs if source.spoke else self.leafs

    # --- changes

    def interest_changed(self, subject: bytes, queue: bytes, delta: int, sink: Sink) -> None:
        """Count an added or removed subscription of this server; called by the router."""
        if isinstance(sink, Shadow) and isinstance(sink.sink, LeafSession):
            self.leaf_changed(sink.sink, subject, queue, delta)  # a session of another account
        elif not isinstance(sink, LeafSession):
            self._local_changed(_key(subject, queue), delta)

    def _local_changed(self, key: bytes, delta: int) -> None:
        count = self.local.add(key, delta)
        if not self.links:
            return
        if count > 0 and count > delta and b" " not in key:
            return  # the subject had subscriptions before, so the peers know it
        for link in tuple(self.links):
            self._announce(link, key, delta)

    def leaf_changed(self, source: LeafSession, subject: bytes, queue: bytes, delta: int) -> None:
        """Count added or removed subscriptions of a peer; called after the link is updated."""
        key = _key(subject, queue)
        self._counts_of(source).add(key, delta)
        cluster = source.peer_cluster
        is_for_all = not source.spoke or subject.startswith(LOOP_PREFIX)
        for link in tuple(self.links):
            if link is source or link.isolated or (cluster and link.peer_cluster == cluster):
                continue
            if is_for_all or not link.spoke:
                self._announce(link, key, delta)

    def _announce(self, link: LeafSession, key: bytes, delta: int) -> None:
        if bucket_of(key) >= self._next_bucket.get(link, limits.NATS_LEAF_BUCKETS):
            return
        count = self._announced_count(link, key)
        if b" " not in key and (count > 0) == (count - delta > 0):
            return
        if link.may_announce(key.partition(b" ")[0]):
            link.send(line(key, count))

    def announce_mapped(self, subjects: Iterable[bytes]) -> None:
        """Announce these subjects, the sources of mappings, instead of those of the last call."""
        new = tuple(subjects)
        old, self._forced = self._forced, new
        if new == old:
            return
        for subject in new:
            self._local_changed(subject, 1)
        for subject in old:
            self._local_changed(subject, -1)


def mapped_subjects(account: Account) -> tuple[bytes, ...]:
    """The subjects that an account maps to others."""
    return () if account.mapper is None else account.mapper.sources


class Interests:
    """The interest of each account that has links or may have some."""

    def __init__(self) -> None:
        self._by_account: dict[Account, Interest] = {}

    @property
    def accounts(self) -> Collection[Account]:
        """The accounts whose subscriptions are counted."""
        return self._by_account.keys()

    def of(self, account: Account) -> Interest:
        """The interest of one account; the first call counts its subscriptions."""
        if account not in self._by_account:
            self._by_account[account] = Interest(account)
            self._by_account[account].announce_mapped(mapped_subjects(account))
        return self._by_account[account]

    def refresh(self, accounts: Collection[Account]) -> None:
        """After a reload: remove accounts that no longer exist, and read the mappings of all."""
        for account, interest in list(self._by_account.items()):
            if account not in accounts and not interest.links:
                del self._by_account[account]
            interest.announce_mapped(mapped_subjects(account))
