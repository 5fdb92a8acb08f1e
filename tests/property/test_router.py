"""The router against one that looks at every subscription, through any order of calls."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.native.routing import Subscriber

from broker.routing.local import publish
from broker.routing.router import Router

SUBSCRIBERS = 3
TOKENS = st.sampled_from([b"a", b"b", b"c", b"long-token-of-more-than-eight", b"*", b">", b"a*"])
LITERALS = st.sampled_from([b"a", b"b", b"c", b"long-token-of-more-than-eight", b"*", b"", b">"])
PATTERNS = st.lists(TOKENS, min_size=1, max_size=4).map(
    lambda tokens: b".".join([t if t != b">" else b"x" for t in tokens[:-1]] + tokens[-1:])
)
SUBJECTS = st.lists(LITERALS, min_size=1, max_size=4).map(b".".join).filter(bool)
QUEUES = st.sampled_from([b"", b"", b"q", b"r", b"s"])


def matches(pattern: bytes, subject: bytes) -> bool:
    """What the protocol says, token by token."""
    wanted, given = pattern.split(b"."), subject.split(b".")
    if b"" in given:
        return False
    for i, token in enumerate(wanted):
        if token == b">":
            return len(given) > i
        if i >= len(given):
            return False
        if token != b"*" and (token != given[i] or given[i] in (b"*", b">")):
            return False
    return len(wanted) == len(given)


class RouterMachine(RuleBasedStateMachine):
    cache: ClassVar[tuple[int, int]] = (4, 8)  # so small that answers are thrown out all the time

    @initialize()
    def begin(self) -> None:
        self.router = Router(*self.cache)
        self.subscribers = [Subscriber(self.router) for _ in range(SUBSCRIBERS)]
        self.subs: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}
        self.count = 0

    @rule(subscriber=st.integers(0, SUBSCRIBERS - 1), pattern=PATTERNS, queue=QUEUES)
    def subscribe(self, subscriber: int, pattern: bytes, queue: bytes) -> None:
        sid = b"%d" % self.count
        self.count += 1
        self.subscribers[subscriber].subscribe(sid, pattern, queue)
        self.subs[subscriber, sid] = (pattern, queue)

    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        if self.subs:
            subscriber, sid = data.draw(st.sampled_from(sorted(self.subs)))
            self.subscribers[subscriber].unsubscribe(sid)
            del self.subs[subscriber, sid]

    @rule(subscriber=st.integers(0, SUBSCRIBERS - 1))
    def leave(self, subscriber: int) -> None:
        self.subscribers[subscriber].close()
        self.subs = {key: value for key, value in self.subs.items() if key[0] != subscriber}

    @rule(subscriber=st.integers(0, SUBSCRIBERS - 1))
    def refuse_or_not(self, subscriber: int) -> None:
        self.subscribers[subscriber].refuses = not self.subscribers[subscriber].refuses

    @rule(subject=SUBJECTS, skip=st.none() | st.integers(0, SUBSCRIBERS - 1))
    def publish(self, subject: bytes, skip: int | None) -> None:
        for subscriber in self.subscribers:
            subscriber.received.clear()
        taken = publish(
            self.router, subject, b"x", skip=None if skip is None else self.subscribers[skip]
        )
        heard = [
            (i, message[0])
            for i, subscriber in enumerate(self.subscribers)
            for message in subscriber.received
        ]
        assert taken == len(heard)
        plain, groups = self.expected(subject, skip)
        assert sorted(sub for sub in heard if not self.subs[sub][1]) == plain
        queued = [sub for sub in heard if self.subs[sub][1]]
        assert sorted(self.subs[sub][1] for sub in queued) == sorted(groups)
        for sub in queued:
            assert sub in groups[self.subs[sub][1]]

    def expected(
        self, subject: bytes, skip: int | None
    ) -> tuple[list[tuple[int, bytes]], dict[bytes, list[tuple[int, bytes]]]]:
        """Plain subscriptions that get it, and for each group those of which one gets it."""
        plain: list[tuple[int, bytes]] = []
        groups: dict[bytes, list[tuple[int, bytes]]] = {}
        for (subscriber, sid), (pattern, queue) in self.subs.items():
            if (
                subscriber == skip
                or self.subscribers[subscriber].refuses
                or not matches(pattern, subject)
            ):
                continue
            if queue:
                groups.setdefault(queue, []).append((subscriber, sid))
            else:
                plain.append((subscriber, sid))
        return sorted(plain), groups

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "router"):
            assert self.router.size == len(self.subs)
            assert self.router.inserts - self.router.removes == len(self.subs)

    def teardown(self) -> None:
        for subscriber in getattr(self, "subscribers", []):
            subscriber.close()


class BigCacheMachine(RouterMachine):
    cache = (8192, 1 << 20)  # nothing is thrown out: stale answers would show


RouterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
BigCacheMachine.TestCase.settings = RouterMachine.TestCase.settings
TestSmallCache = RouterMachine.TestCase
TestBigCache = BigCacheMachine.TestCase
