"""What the links of an account announce to their peers.

A peer is told of a key, which is a subject or a subject and a queue group, when the first who wants
it comes and when the last one goes; of a group whenever its weight changes. A hub tells a leaf of
everything that others want here, a leaf tells its hub only of what is wanted on its own side: by
clients, and by leafs of its own. Nobody is told of what it wants itself, nor what a leaf of the
same cluster does. Source: nats-server leafnode.go initLeafNodeSmapAndSendSubs, updateSmap.

Keys lie in drawers. A new peer is told of one drawer after the other, in as many turns as it takes;
of a drawer that it has not come to it is told no changes.
"""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING, Final

from broker.protocols.nats.accounts.imports import Shadow
from broker.protocols.nats.leafnodes import limits
from broker.protocols.nats.leafnodes.session import LeafSession

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.protocols.nats.accounts.account import Account
    from broker.runtime.interfaces import Sink

LOOP_PREFIX: Final = b"$LDS."
_LETTERS: Final = string.digits + string.ascii_letters
_LOOP_LETTERS: Final = 22


def _key(subject: bytes, queue: bytes) -> bytes:
    return subject + b" " + queue if queue else subject


def line(key: bytes, count: int) -> bytes:
    """What is sent when so many want it now."""
    if count <= 0:
        return b"LS- " + key + b"\r\n"
    return b"LS+ %b %d\r\n" % (key, count) if b" " in key else b"LS+ " + key + b"\r\n"


class Tally:
    """How many want each key."""

    __slots__ = ("drawers",)

    def __init__(self) -> None:
        self.drawers: dict[int, dict[bytes, int]] = {}

    def get(self, key: bytes) -> int:
        drawer = self.drawers.get(drawer_of(key))
        return 0 if drawer is None else drawer.get(key, 0)

    def add(self, key: bytes, delta: int) -> int:
        """So many more, or less; how many there are now."""
        number = drawer_of(key)
        drawer = self.drawers.get(number)
        if drawer is None:
            drawer = self.drawers[number] = {}
        count = drawer.get(key, 0) + delta
        if count:
            drawer[key] = count
            return count
        drawer.pop(key, None)
        if not drawer:
            del self.drawers[number]
        return 0


def drawer_of(key: bytes) -> int:
    """Where a key lies."""
    return hash(key) % limits.NATS_LEAF_DRAWERS


class Interest:
    """Of one account. It counts from before the first link on: to count a million subscriptions
    when that one comes would stop everybody for seconds."""

    def __init__(self, account: Account) -> None:
        self.account = account
        letters = (secrets.choice(_LETTERS) for _ in range(_LOOP_LETTERS))
        # Nobody else announces it: if a peer does, it has gone round in a circle.
        self.loop_subject = LOOP_PREFIX + "".join(letters).encode()
        self.links: set[LeafSession] = set()
        self._clusters: dict[str, list[LeafSession]] = {}
        self._untold: dict[LeafSession, int] = {}  # the first drawer it has not heard of yet
        self.local = Tally()  # wanted here
        self.below = Tally()  # on leafs of ours
        self.above = Tally()  # on our hubs
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
        """A link is there: tell its peer everything, the most of it in later turns."""
        self.links.add(link)
        self._clusters.setdefault(link.peer_cluster, []).append(link)
        self._untold[link] = 0
        link.send(line(self.loop_subject, 1))  # first: a circle is noticed before all the rest
        self.tell_more(link)

    def tell_more(self, link: LeafSession) -> bool:
        """Announce a further part of what was wanted when it joined; False when that is done."""
        number = self._untold.get(link)
        if number is None:
            return False
        lines: list[bytes] = []
        looked_at = 0
        tallies = (self.local, self.below) if link.spoke else (self.local, self.below, self.above)
        while number < limits.NATS_LEAF_DRAWERS and looked_at < limits.NATS_LEAF_ANNOUNCE:
            for key in {key for tally in tallies for key in tally.drawers.get(number, ())}:
                looked_at += 1
                count = self._seen_by(link, key)
                if (
                    count > 0
                    and key != self.loop_subject
                    and (link.may_announce(key.partition(b" ")[0]))
                ):
                    lines.append(line(key, count))
            number += 1
        self._untold[link] = number
        if number == limits.NATS_LEAF_DRAWERS:
            del self._untold[link]
        if lines:
            link.send(b"".join(lines))
        return number < limits.NATS_LEAF_DRAWERS

    def leave(self, link: LeafSession) -> None:
        """A link is gone; what its peer wanted is taken out one by one."""
        if link not in self.links:
            return
        self.links.remove(link)
        self._untold.pop(link, None)
        twins = self._clusters[link.peer_cluster]
        twins.remove(link)
        if not twins:
            del self._clusters[link.peer_cluster]

    def _seen_by(self, link: LeafSession, key: bytes) -> int:
        """How many want it as this peer may know."""
        upward = not link.spoke or key.startswith(LOOP_PREFIX)
        count = self.local.get(key) + self.below.get(key)
        if upward:
            count += self.above.get(key)
        for twin in self._clusters[link.peer_cluster] if link.peer_cluster else (link,):
            if upward or not twin.spoke:
                count -= twin.weight(key)
        return count

    def _counts_of(self, source: LeafSession) -> Tally:
        return self.above if source.spoke else self.below

    # --- changes

    def interest_changed(self, subject: bytes, queue: bytes, delta: int, sink: Sink) -> None:
        """A subscription of this server comes or goes; called by the router."""
        if isinstance(sink, Shadow) and isinstance(sink.sink, LeafSession):
            self.leaf_changed(sink.sink, subject, queue, delta)  # of another account
        elif not isinstance(sink, LeafSession):
            self._changed_here(_key(subject, queue), delta)

    def _changed_here(self, key: bytes, delta: int) -> None:
        count = self.local.add(key, delta)
        if not self.links:
            return
        if count > 0 and count > delta and b" " not in key:
            return  # some were there before and some still are, which everybody knows
        for link in tuple(self.links):
            self._tell(link, key, delta)

    def leaf_changed(self, source: LeafSession, subject: bytes, queue: bytes, delta: int) -> None:
        """The peer of a link wants more of it or less; the link knows that already."""
        key = _key(subject, queue)
        self._counts_of(source).add(key, delta)
        cluster = source.peer_cluster
        everybody = not source.spoke or subject.startswith(LOOP_PREFIX)
        for link in tuple(self.links):
            if link is source or (cluster and link.peer_cluster == cluster):
                continue
            if everybody or not link.spoke:
                self._tell(link, key, delta)

    def _tell(self, link: LeafSession, key: bytes, delta: int) -> None:
        if drawer_of(key) >= self._untold.get(link, limits.NATS_LEAF_DRAWERS):
            return
        count = self._seen_by(link, key)
        if b" " not in key and (count > 0) == (count - delta > 0):
            return
        if link.may_announce(key.partition(b" ")[0]):
            link.send(line(key, count))

    def force(self, subjects: Iterable[bytes]) -> None:
        """Announce these too, and no longer those of before: the sources of mappings."""
        new = tuple(subjects)
        old, self._forced = self._forced, new
        if new == old:
            return
        for subject in new:
            self._changed_here(subject, 1)
        for subject in old:
            self._changed_here(subject, -1)
