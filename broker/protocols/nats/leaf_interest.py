"""What the links of an account announce to their peers.

A peer is told of a key, which is a subject or a subject and a queue group, when the first who wants
it comes and when the last one goes; of a group whenever its weight changes. A hub tells a leaf of
everything that others want here, a leaf tells its hub only of what is wanted on its own side: by
clients, and by leafs of its own. Nobody is told of what it wants itself, nor what a leaf of the
same cluster does. Source: nats-server leafnode.go initLeafNodeSmapAndSendSubs, updateSmap.
"""

from __future__ import annotations

import secrets
import string
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker import limits
from broker.protocols.nats.imports import Shadow
from broker.protocols.nats.leaf_session import LeafSession

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.core.seams import Sink
    from broker.protocols.nats.account import Account

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


class Interest:
    """Of one account; made for its first link, and kept: links come back."""

    def __init__(self, account: Account) -> None:
        self.account = account
        letters = (secrets.choice(_LETTERS) for _ in range(_LOOP_LETTERS))
        # Nobody else announces it: if a peer does, it has gone round in a circle.
        self.loop_subject = LOOP_PREFIX + "".join(letters).encode()
        self.links: set[LeafSession] = set()
        self._clusters: dict[str, list[LeafSession]] = {}
        self._untold: dict[LeafSession, dict[bytes, None]] = {}  # what a link has not heard of yet
        # By key, how many want it: here, on leafs of ours, and on our hubs.
        self.local: dict[bytes, int] = {}
        self.below: dict[bytes, int] = {}
        self.above: dict[bytes, int] = {}
        self._forced: tuple[bytes, ...] = ()
        self._watching = False

    def _watch(self) -> None:
        self._watching = True
        for subject, queue, _, sink, *_ in self.account.router.listing():
            if isinstance(sink, Shadow) and isinstance(sink.sink, LeafSession):
                _add(self._counts_of(sink.sink), _key(subject, queue), 1)
            elif not isinstance(sink, LeafSession):
                _add(self.local, _key(subject, queue), 1)
        for key in (self.loop_subject, *self._forced):
            self.local[key] = self.local.get(key, 0) + 1
        self.account.router.watch(self)

    # --- links

    def join(self, link: LeafSession) -> None:
        """A link is there: tell its peer everything, the most of it in later turns."""
        if not self._watching:
            self._watch()
        self.links.add(link)
        self._clusters.setdefault(link.peer_cluster, []).append(link)
        keys = dict.fromkeys((self.loop_subject, *self.local, *self.below))
        if not link.spoke:
            keys.update(dict.fromkeys(self.above))
        self._untold[link] = keys
        self.tell_more(link)

    def tell_more(self, link: LeafSession) -> bool:
        """Announce a further part of what was wanted when it joined; False when that is done."""
        keys = self._untold.get(link)
        if keys is None:
            return False
        lines = []
        for key in list(islice(keys, limits.NATS_LEAF_ANNOUNCE)):
            del keys[key]
            count = self._seen_by(link, key)
            if count > 0 and link.may_announce(key.partition(b" ")[0]):
                lines.append(line(key, count))
        if not keys:
            del self._untold[link]
        if lines:
            link.send(b"".join(lines))
        return bool(keys)

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
        count = self.local.get(key, 0) + self.below.get(key, 0)
        if upward:
            count += self.above.get(key, 0)
        for twin in self._clusters[link.peer_cluster] if link.peer_cluster else (link,):
            if upward or not twin.spoke:
                count -= twin.weight(key)
        return count

    def _counts_of(self, source: LeafSession) -> dict[bytes, int]:
        return self.above if source.spoke else self.below

    # --- changes

    def interest_changed(self, subject: bytes, queue: bytes, delta: int, sink: Sink) -> None:
        """A subscription of this server comes or goes; called by the router."""
        if isinstance(sink, Shadow) and isinstance(sink.sink, LeafSession):
            self.leaf_changed(sink.sink, subject, queue, delta)  # of another account
        elif not isinstance(sink, LeafSession):
            self._changed_here(_key(subject, queue), delta)

    def _changed_here(self, key: bytes, delta: int) -> None:
        count = _add(self.local, key, delta)
        if count > 0 and count > delta and b" " not in key:
            return  # some were there before and some still are, which everybody knows
        for link in tuple(self.links):
            self._tell(link, key, delta)

    def leaf_changed(self, source: LeafSession, subject: bytes, queue: bytes, delta: int) -> None:
        """The peer of a link wants more of it or less; the link knows that already."""
        key = _key(subject, queue)
        _add(self._counts_of(source), key, delta)
        cluster = source.peer_cluster
        everybody = not source.spoke or subject.startswith(LOOP_PREFIX)
        for link in tuple(self.links):
            if link is source or (cluster and link.peer_cluster == cluster):
                continue
            if everybody or not link.spoke:
                self._tell(link, key, delta)

    def _tell(self, link: LeafSession, key: bytes, delta: int) -> None:
        if link in self._untold and key in self._untold[link]:
            return
        count = self._seen_by(link, key)
        if b" " not in key and (count > 0) == (count - delta > 0):
            return
        if link.may_announce(key.partition(b" ")[0]):
            link.send(line(key, count))

    def force(self, subjects: Iterable[bytes]) -> None:
        """Announce these too, and no longer those of before: the sources of mappings."""
        old, self._forced = self._forced, tuple(subjects)
        if self._watching:
            for subject in self._forced:
                self._changed_here(subject, 1)
            for subject in old:
                self._changed_here(subject, -1)


def _add(counts: dict[bytes, int], key: bytes, delta: int) -> int:
    count = counts.get(key, 0) + delta
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
    return count
