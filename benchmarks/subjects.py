"""The index of a stream's subjects: appends, searches and deletions per second, and its memory.

    python benchmarks/subjects.py [--messages 10000000] [--subjects 1000000]

No server, no file: the structure alone, on one core, in CPU time. Subjects have about 32 bytes;
with many of them each message is of another one than its predecessor, far away in memory.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.native.subjects import Subjects

from broker.engine.stream.listing import SubjectList
from broker.engine.stream.subjects import SubjectIndex

NAME = b"orders.eu.customer.item.n."
STRIDE = 245_489  # between the numbers of subjects that follow each other


def row(name: str, count: int, run: Callable[[], object]) -> None:
    """Run it, and print how many per second."""
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    print(f"{name:44} {seconds * 1e3:9.1f} ms {count / seconds / 1e6:9.2f} M/s")


def filled(messages: int, subjects: int) -> tuple[SubjectIndex, Subjects]:
    """An index with so many; its appends are measured."""
    index = SubjectIndex()
    at = Subjects(index)
    row(
        f"add, {subjects:,} subjects",
        messages,
        lambda: at.add_many(NAME, 1, messages, subjects, STRIDE % subjects),
    )
    print(f"{'':44} {index.memory / 1e6:9.1f} MB")
    return index, at


def searches(index: SubjectIndex, at: Subjects, subjects: int) -> None:
    """Whole walks through the column, with filters of several sizes."""
    messages = index.messages
    for share in (subjects // 10, subjects // 1000, 3):
        names = [NAME + b"%d" % (i * (subjects // share)) for i in range(share)]
        found = index.filter(names)
        assert found is not None
        what = f"{found.total:,} messages of {share:,} subjects"
        row(f"count {what}", messages, lambda found=found: at.count_matching(found, messages // 2))
        row(f"find {what}", messages, lambda found=found: at.walk(found, 0))
    row("a filter with a wildcard", subjects, lambda: index.filter([NAME + b"*"]))
    row("the last message of each subject", subjects, index.last_per_subject)
    row("a page of 1,000 subjects", subjects, lambda: page(index, subjects // 2, 1000))


def page(index: SubjectIndex, first: int, limit: int) -> list[tuple[str, int]]:
    """The subjects of these ranks, as STREAM.INFO lists them."""
    subjects = SubjectList(index)
    while subjects.copy_more():
        pass
    subjects.sort(first, limit)
    return subjects.part(first, limit)


def deletions(index: SubjectIndex, at: Subjects, subjects: int) -> None:
    """Purges of some subjects, of every second message, of the first half, of all."""
    few = index.filter([NAME + b"%d" % i for i in range(subjects // 100)])
    assert few is not None
    row(f"purge {subjects // 100:,} subjects", few.total, lambda: at.kill_filter(few))
    half = index.next_seq // 2
    row("kill every second message of a half", half // 2, lambda: at.kill_many(1, half // 2, 2))
    left = index.messages - at.count_matching(None, half)
    row("drop that half", left, lambda: at.drop_below(half))
    row("purge all", index.messages, at.clear)


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--subjects", type=int, default=1_000_000)
    options = parser.parse_args()
    filled(options.messages, 10)
    index, at = filled(options.messages, options.subjects)
    searches(index, at, options.subjects)
    deletions(index, at, options.subjects)


if __name__ == "__main__":
    main()
