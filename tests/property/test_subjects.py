"""The index of a stream's subjects against a dict of subjects by seq."""

from __future__ import annotations

import gc

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.native.subjects import Subjects

from broker.engine.stream.filter import Filter
from broker.engine.stream.listing import SubjectList
from broker.engine.stream.subjects import SubjectIndex

CHUNK = 1 << 14
TOKENS = st.sampled_from(["a", "b", "c", "long-token-of-some-length", "x" * 70])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=3).map(".".join)
PATTERNS = (
    st.lists(TOKENS | st.just("*"), min_size=1, max_size=3).map(".".join)
    | st.lists(TOKENS | st.just("*"), min_size=1, max_size=2).map(lambda t: ".".join([*t, ">"]))
    | st.sampled_from(["a..b", "a.>.b", "b*", "a.*.c*", ".", "m.>", "m.*", "m.7", "n.*", "n.11"])
)
# Neighbours, the next chunk, and a chunk far away.
STEPS = st.sampled_from([1] * 8 + [2, 63, 1000, CHUNK, 3 * CHUNK + 5, 10**7, 2**33])


def matches(pattern: str, subject: str) -> bool:
    """As the protocol defines it."""
    tokens, names = pattern.split("."), subject.split(".")
    if "" in tokens or ">" in tokens[:-1]:
        return False
    if tokens[-1] == ">":
        tokens.pop()
        if len(names) <= len(tokens):
            return False
        names = names[: len(tokens)]
    return len(tokens) == len(names) and all(
        token in ("*", name) for token, name in zip(tokens, names, strict=True)
    )


def listed(
    index: SubjectIndex, among: Filter | None, offset: int = 0, limit: int = 1 << 20
) -> list[tuple[str, int]]:
    """A page of the sorted list of subjects."""
    subjects = SubjectList(index, among)
    while subjects.copy_more():
        pass
    subjects.sort(offset, limit)
    return subjects.part(offset, limit)


class SubjectsMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        gc.freeze()  # what other tests have left need not be looked through at each end
        self.index = SubjectIndex()
        self.at = Subjects(self.index)
        self.live: dict[int, str] = {}
        self.next = 1
        self.filters: dict[tuple[str, ...], Filter] = {}

    def add(self, subject: str, seq: int) -> None:
        self.at.add(subject.encode(), seq)
        self.live[seq] = subject
        self.next = seq + 1

    @rule(subject=SUBJECTS, step=STEPS)
    def one(self, subject: str, step: int) -> None:
        self.add(subject, self.next + step - 1)

    @rule(
        name=st.sampled_from("mn"),
        count=st.integers(1, 3000),
        subjects=st.sampled_from([1, 3, 20, 5000]),
        step=st.sampled_from([1, 1, 1, 7, 400]),
    )
    def many(self, name: str, count: int, subjects: int, step: int) -> None:
        first = self.next
        for i in range(count):
            self.add(f"{name}.{(first + i) % subjects}", first + i * step)

    def some(self, data: st.DataObject) -> int:
        """A seq, often of a live message."""
        if self.live and data.draw(st.booleans()):
            seqs = list(self.live)
            return seqs[data.draw(st.integers(0, len(seqs) - 1))]
        return data.draw(st.integers(0, self.next + 2))

    @rule(data=st.data(), count=st.integers(1, 20))
    def kill(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            seq = self.some(data)
            assert self.at.kill(seq) == (self.live.pop(seq, None) is not None)

    @rule(keep=st.sampled_from([2, 5, 40, 1000]), data=st.data())
    def thin(self, keep: int, data: st.DataObject) -> None:
        start = self.some(data)
        for seq in [s for s in self.live if s >= start and s % keep]:
            assert self.at.kill(seq)
            del self.live[seq]

    @rule(data=st.data())
    def kill_ends(self, data: st.DataObject) -> None:
        """The oldest and the newest message of a subject."""
        subject = self.live.get(self.some(data))
        for newest in (False, True):
            seqs = [seq for seq, name in self.live.items() if name == subject]
            if seqs:
                seq = max(seqs) if newest else min(seqs)
                assert self.at.kill(seq)
                del self.live[seq]

    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        seq = max(1, self.next - data.draw(st.sampled_from([0, 1, 5, 500, 20000])))
        self.at.undo_from(seq)
        self.live = {s: name for s, name in self.live.items() if s < seq}
        self.next = min(self.next, seq)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        seq = self.some(data)
        gone = [s for s in self.live if s < seq]
        assert self.at.drop_below(seq) == len(gone)
        for s in gone:
            del self.live[s]

    @rule()
    def clear(self) -> None:
        self.at.clear()
        self.live.clear()

    @rule(subjects=st.lists(PATTERNS, min_size=1, max_size=4))
    def make_filter(self, subjects: list[str]) -> None:
        found = self.index.filter(subjects)
        assert found is not None
        assert self.index.filter(reversed(subjects)) is found
        self.filters[tuple(subjects)] = found

    @rule(data=st.data())
    def release_filter(self, data: st.DataObject) -> None:
        if self.filters:
            del self.filters[data.draw(st.sampled_from(sorted(self.filters)))]

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        seq = self.some(data)
        subject = self.live.get(seq)
        same = sorted(s for s, name in self.live.items() if name == subject)
        if subject is not None:
            place = same.index(seq)
            assert self.at.previous_of(seq) == (same[place - 1] if place else 0)
            assert self.at.next_of(seq) == (same[place + 1] if same[-1] > seq else 0)
            assert self.at.subject_of(seq) == subject.encode()
            assert self.at.ends_of(subject.encode()) == (same[0], same[-1], len(same))
            until = self.some(data)
            assert self.at.last_of_until(subject.encode(), until) == max(
                (s for s in same if s <= until), default=0
            )
        else:
            assert self.at.next_of(seq) == self.at.previous_of(seq) == 0
            assert self.at.subject_of(seq) is None

    def check(self, found: Filter | None, seqs: list[int], seq: int) -> None:
        above = [s for s in seqs if s >= seq]
        below = [s for s in seqs if s <= seq]
        assert self.at.next_match(found, seq) == (above[0] if above else 0)
        assert self.at.previous_match(found, seq) == (below[-1] if below else 0)
        assert self.at.count_matching(found, seq) == len(above)
        assert self.at.last_match(found) == (seqs[-1] if seqs else 0)

    @rule(data=st.data(), whole=st.booleans())
    def ask_filter(self, data: st.DataObject, whole: bool) -> None:
        names: tuple[str, ...] = (">",)
        found = None
        if self.filters and not whole:
            names = data.draw(st.sampled_from(sorted(self.filters)))
            found = self.filters[names]
        seqs = sorted(s for s, name in self.live.items() if any(matches(p, name) for p in names))
        for seq in (0, self.some(data), self.some(data), 2**64 - 1):
            self.check(found, seqs, seq)
        counts: dict[str, int] = {}
        last: dict[str, int] = {}
        until = self.some(data)
        for seq in seqs:
            counts[self.live[seq]] = counts.get(self.live[seq], 0) + 1
            if seq <= until:
                last[self.live[seq]] = seq
        page = sorted(counts.items())
        offset, limit = data.draw(st.integers(0, len(page) + 1)), data.draw(st.integers(0, 30))
        assert listed(self.index, found, offset, limit) == page[offset : offset + limit]
        assert listed(self.index, found) == page
        assert list(self.index.last_per_subject(found, until)) == sorted(last.values())
        if found is not None:
            assert (found.total, found.size) == (len(seqs), len(counts))
            for name in set(self.live.values()):
                assert self.at.matches(found, name.encode()) == (name in counts)
                assert self.at.accepts(found, name.encode()) == (name in counts)

    @invariant()
    def totals(self) -> None:
        assert self.index.messages == len(self.live)
        assert self.index.size == len(set(self.live.values()))
        assert self.index.next_seq == self.next

    def teardown(self) -> None:
        for names, found in self.filters.items():
            total = sum(any(matches(p, name) for p in names) for name in self.live.values())
            assert found.total == total
        self.filters.clear()
        gc.collect()
        gc.unfreeze()


TestSubjects = SubjectsMachine.TestCase
TestSubjects.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
