"""`compact`: merges the hour files of past days into day files, in the order of offsets.

    plan -> tasks write day files and check them -> a version of the manifest -> a later run
    removes the old files, when the grace period is over

The version replaces the old files by the new ones in one step. A query that was planned before it
still reads the old ones, so they are kept for a grace period; REPLACED stores its start. A run that
is killed before the version leaves new files that no version names; one that is killed after it
leaves old files that no version names any more. A later run removes both.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.spark.archive import layout
from broker.spark.archive.manifest import Change, DataFile, Manifest, State
from broker.spark.jobs.command import (
    Duration,
    Job,
    Reporter,
    job_options,
    print_line,
    run,
    session,
    size,
)
from broker.spark.jobs.errors import FAILED_TASK, JobError
from broker.spark.jobs.limits import (
    COMPACT_AFTER_S,
    COMPACT_GRACE_S,
    COMPACT_GROUPS,
    DAY_FILE_BYTES,
)
from broker.spark.jobs.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.spark.archive.compact import Day, Merged


REPLACED = "replaced.json"


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """Options of `compact` besides those of every job."""

    folder: str
    topics: tuple[str, ...] | None = None
    after_s: float = COMPACT_AFTER_S
    file_bytes: int = DAY_FILE_BYTES
    grace_s: float = COMPACT_GRACE_S


def days_of(state: State, args: CompactOptions, today: str) -> list[Day]:
    """Days before `today` with hour files, and the small day files of those days."""
    from broker.spark.archive.compact import Day

    groups: dict[tuple[str, int, str, str], list[DataFile]] = defaultdict(list)
    for one in state.select(args.topics):
        date = layout.date_of(one.path)
        small = one.bytes < args.file_bytes // 2
        if date < today and (small or not layout.is_day_file(one.path)):
            groups[one.topic, one.partition, one.incarnation, date].append(one)
    archive = str(Path(args.folder).absolute())
    return [
        Day(archive, key[3], tuple(sorted(files, key=lambda one: one.first)), args.file_bytes)
        for key, files in sorted(groups.items())
        if not all(layout.is_day_file(one.path) for one in files)
    ]


def over_before(now: datetime, after_s: float) -> str:
    """The earliest date that may still receive records."""
    return f"{now - timedelta(seconds=after_s):%Y-%m-%d}"


class Compacter:
    """One run of the job."""

    def __init__(
        self, spark: SparkSession, args: CompactOptions, reporter: Reporter = print_line
    ) -> None:
        self.spark = spark
        self.reporter = reporter
        self.days = 0
        self._args = args
        self._manifest = Manifest(args.folder)
        self._replaced: dict[
            str, float
        ] = {}  # files that no longer count -> time of their replacement
        self._now_s = 0.0

    def run(self, now: datetime) -> None:
        self._manifest.id()
        self._now_s = now.timestamp()
        with self._manifest.lock("compact"):
            state = self._manifest.load()
            self._replaced = dict(self._manifest.saved(REPLACED) or {})
            # Including those of a run that was killed before it stored the time. After the clock
            # was set back, a stored time may be in the future and must not keep files for ever.
            new_paths = {path: self._now_s for path in state.trash if path not in self._replaced}
            self._replaced |= {
                path: self._now_s
                for path, since_s in (self._replaced | new_paths).items()
                if path in new_paths or since_s > self._now_s
            }
            self._drop_replaced(state)
            days = days_of(state, self._args, over_before(now, self._args.after_s))
            for at in range(0, len(days), COMPACT_GROUPS):
                state = self._replace(days[at : at + COMPACT_GROUPS], state)

    def _replace(self, days: Sequence[Day], state: State) -> State:
        self._sweep(days, state)
        results = run_tasks(self.spark, _task, days)
        done = [one for one in results if not one.failure]
        add = tuple(new for one in done for new in one.add)
        remove = tuple(path for one in done for path in one.remove)
        if remove:
            change = Change("compact", add=add, remove=remove)
            state = self._manifest.commit(
                change, state, lambda now: all(path in now.files for path in remove)
            )
            self._replaced |= dict.fromkeys(remove, self._now_s)
            self._manifest.save(REPLACED, self._replaced)
        self.days += len(done)
        self.reporter(
            f"compact: {len(remove)} files of {len(done)} days became {len(add)}, "
            f"{size(sum(one.bytes for one in add))}"
        )
        for one in results:
            if one.failure:
                raise JobError(FAILED_TASK.format(text=one.failure))
        return state

    def _sweep(self, days: Sequence[Day], state: State) -> None:
        """Remove day files of an earlier run that no version of the manifest names."""
        archive = self._manifest.archive
        for day in days:
            folder = layout.folder(day.files[0].topic, None, day.date)
            for path in (archive / folder).glob("*"):
                name = f"{folder}/{path.name}"
                if name not in state.files and name not in self._replaced:
                    path.unlink(missing_ok=True)

    def _drop_replaced(self, state: State) -> None:
        """Remove replaced files whose grace period is over."""
        before_s = self._now_s - self._args.grace_s
        expired = [path for path, since_s in self._replaced.items() if since_s <= before_s]
        self._remove(path for path in expired if path not in state.files)
        for path in expired:
            del self._replaced[path]
        for path in [
            path for path in self._replaced if not (self._manifest.archive / path).exists()
        ]:
            del self._replaced[path]  # of the last version, already removed by an earlier run
        self._manifest.save(REPLACED, self._replaced)

    def _remove(self, paths: Iterable[str]) -> None:
        for path in [self._manifest.archive / one for one in paths]:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                path.parent.rmdir()


def _task(day: Day) -> Merged:
    from broker.spark.archive.compact import merge_day

    return merge_day(day)


def build(spark: SparkSession, args: CompactOptions, reporter: Reporter = print_line) -> Compacter:
    return Compacter(spark, args, reporter)


@click.command("compact")
@click.argument("folder", metavar="DIR")
@job_options(servers=False)
@click.option("--topics", help="Names of topics, separated by commas.  [default: all]")
@click.option(
    "--after",
    type=Duration(),
    default=float(COMPACT_AFTER_S),
    help="How long after its end a day is compacted.  [default: 1h]",
)
@click.option(
    "--grace",
    type=Duration(),
    default=float(COMPACT_GRACE_S),
    help="How long replaced files stay for queries that read them.  [default: 1d]",
)
@click.option("--file-mib", type=click.IntRange(1), default=DAY_FILE_BYTES >> 20, show_default=True)
def command(job: Job, folder: str, topics: str | None, **options: Any) -> None:
    """Merge the many small files of each past day into a few large ones."""
    names = tuple(topics.split(",")) if topics else None
    args = CompactOptions(
        folder, names, options["after"], options["file_mib"] << 20, options["grace"]
    )
    Manifest(folder).id()
    with session(job, "compact", light=True) as spark:
        compacter = build(spark, args)
        compacter.run(datetime.now(UTC))
        print_line(f"compact: {compacter.days} days of {folder}")


def main(argv: Sequence[str] | None = None) -> None:
    run(command, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
