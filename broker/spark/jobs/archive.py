"""`archive`: writes topics to Parquet files by topic, date and hour, each record exactly once.

    plan -> store the batch -> tasks write its files -> a version of the manifest -> a new hold

The manifest is the checkpoint: it has the end of the archived range of each topic. A batch is
stored before it begins, so a run after a crash reads the same ranges and writes files with the same
names. A file belongs to the archive only after a version names it.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from broker.client.bulk.errors import Refused, Unauthorized
from broker.spark.archive import layout, table
from broker.spark.archive import plan as planned
from broker.spark.archive.manifest import Change, DataFile, Gap, Manifest, State
from broker.spark.archive.plan import Batch
from broker.spark.brokers import Brokers
from broker.spark.errors import DOWN, BrokerDownError, WrongDoorError
from broker.spark.jobs.command import (
    Done,
    Duration,
    Job,
    Reporter,
    ends_with_signals,
    job_options,
    print_line,
    run,
    session,
)
from broker.spark.jobs.errors import (
    BROKER_DOWN,
    FAILED_TASK,
    MAY_NOT_HOLD,
    MISSING,
    NO_HOLDS,
    NOT_COVERED,
    NOT_SHARED,
    NOT_THERE,
    STOPPED,
    WAITS,
    WRONG_SIZE,
    JobError,
)
from broker.spark.jobs.limits import BATCH_RECORDS, BROKER_PATIENCE_S, BROKER_RETRY_S, HOLD_TTL_S
from broker.spark.jobs.tasks import run_tasks
from broker.spark.limits import PARTITION_RECORDS
from broker.spark.offsets import OffsetRange, Offsets, TopicPartition
from broker.spark.options import Progress, Splitting, Wanted
from broker.spark.topics import Survey, unseen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.spark.archive.write import Outcome, Work

PENDING = "pending.json"
SHARED = "shared"


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Options of `archive` besides those of every job."""

    folder: str
    batch_records: int = BATCH_RECORDS
    task_records: int = PARTITION_RECORDS
    gaps: bool = False  # lost records are recorded in the manifest; False: they end the job
    latest: bool = False
    hold: bool = True
    hold_ttl_s: int = HOLD_TTL_S
    key_header: str | None = None
    patience_s: float = BROKER_PATIENCE_S
    allow_missing: bool = False  # topics that do not exist are no error of a single run


class _TestRead(NamedTuple):
    """The text that a task read from the driver's test file; None: it could not."""

    host: str
    text: str | None


def _read_token(path: str) -> _TestRead:
    try:
        text = str(json.loads(Path(path).read_bytes()))
    except (OSError, ValueError):
        text = None
    return _TestRead(socket.gethostname(), text)


class _ChangedError(Exception):
    """A log has changed since the batch was planned, so a new plan is needed."""


class Archiver:
    """One run of the job. `stop` may be set by another thread or a signal."""

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        archiving: ArchiveOptions,
        reporter: Reporter = print_line,
    ) -> None:
        self.spark = spark
        self.job = job
        self.reporter = reporter
        self.stop = threading.Event()
        self.batches = self.records = self.gaps = 0
        self.missing: list[str] = []  # a line for each named topic that does not exist
        self._reached = False  # whether a broker has answered in this run
        self._args = archiving
        self._manifest = Manifest(archiving.folder)
        self._manifest.create()
        self._access = job.access
        self._brokers = Brokers(self._access)
        self._splitting = Splitting(records_per_partition=archiving.task_records)

    def run(self) -> None:
        """Run once, or repeat until `stop` is set."""
        with self._manifest.lock("archive"), self._brokers:
            self._check_shared()
            state = self._resume(self._manifest.load())

            def catch_up() -> Sequence[str]:
                nonlocal state
                state, down = self._catch_up(state)
                return down

            self.job.repeat(self.stop, catch_up)

    def _catch_up(self, state: State) -> tuple[State, Sequence[str]]:
        """Archive up to the current ends of the logs; also returns the brokers not reached."""
        survey = self._survey(self.job.wanted)
        if survey.down:
            self.reporter(f"archive: {DOWN.format(servers='; '.join(survey.down))}")
        missing = unseen(self.job.wanted, survey)
        for text in missing:
            self.reporter(f"archive: {text}")
        self.missing = missing if self.job.wanted.pattern is None else []
        if self._args.latest and not state.version:
            if survey.down:
                return state, survey.down  # it is unknown which records they have already
            change = planned.starting_change(survey)
            state = self._manifest.commit(change, state, lambda now: not now.version)
        frozen = survey.latest()
        has_held = False
        while not self.stop.is_set():
            start = planned.begin(state, survey, self.job.wanted)
            if not self._args.gaps:
                planned.refuse(start.gaps)
            if not has_held:
                self._hold(survey, start.offsets)
                has_held = True
            target = planned.targets(start, survey, frozen)
            batch = planned.next_batch(
                start, target, survey, self._args.batch_records, self._splitting
            )
            if batch is None:
                break
            self._manifest.save(PENDING, batch.to_json())
            try:
                state = self._finish(batch, state, survey)
            except _ChangedError:
                self._abandon(batch, state)
                survey = self._survey(self.job.wanted)
        return state, survey.down

    def _survey(self, wanted: Wanted) -> Survey:
        """List the topics. Some brokers may be down; if all are, wait for one.

        A single run does not wait before a first answer, because the addresses may be wrong.
        """
        deadline = time.monotonic() + self._args.patience_s
        reported = False
        while True:
            try:
                survey = self._brokers.survey(wanted, patient=True)
            except WrongDoorError:
                raise
            except BrokerDownError as error:
                if self.job.every_s is None and not self._reached:
                    raise
                if not reported:
                    text = WAITS.format(text=error, seconds=f"{self._args.patience_s:.0f}")
                    self.reporter(f"archive: {text}")
                    reported = True
                self._wait_for_broker(str(error), deadline)
            else:
                self._reached = True
                return survey

    def _wait_for_broker(self, text: str, deadline: float) -> None:
        if self.stop.wait(BROKER_RETRY_S):
            raise JobError(f"{text}; {STOPPED}")
        if time.monotonic() > deadline:
            raise JobError(BROKER_DOWN.format(text=text, seconds=f"{self._args.patience_s:.0f}"))

    # --- one batch

    def _resume(self, state: State) -> State:
        """Finish the batch that an earlier run has begun."""
        noted = self._manifest.saved(PENDING)
        if noted is None:
            return state
        batch = Batch.from_json(noted)
        if batch.id == state.batch:  # everything was done except removing this file
            self._manifest.remove_saved(PENDING)
            return state
        self._sweep(batch, state)
        self.reporter(f"archive: completing an unfinished batch of {batch.records:,} records first")
        topics = {one.topic for task in batch.tasks for one in task}
        try:
            if not topics:
                return self._finish(batch, state, Survey({}))
            return self._finish(batch, state, self._survey(Wanted(names=tuple(sorted(topics)))))
        except _ChangedError:
            self._abandon(batch, state)
            return state

    def _finish(self, batch: Batch, state: State, survey: Survey) -> State:
        began = time.monotonic()
        outcomes = self._work(batch, survey)
        files = tuple(one for outcome in outcomes for one in outcome.files)
        found = tuple(gap for outcome in outcomes for gap in outcome.gaps)
        if not self._args.gaps:
            planned.refuse(gap for gap in found if gap.reason == planned.TRIMMED)
        _check_covered(batch, outcomes)
        self._check_visible(files)
        ended = {one.topic_partition for one in batch.ranges}
        before = {tp: state.offsets.get(tp) for tp in ended}
        state = self._manifest.commit(
            Change("archive", batch.id, files, (), batch.ranges, (*batch.gaps, *found)),
            state,
            lambda now: all(now.offsets.get(tp) == offset for tp, offset in before.items()),
        )
        self._manifest.remove_saved(PENDING)
        self._report(state, survey, [*batch.gaps, *found], files, time.monotonic() - began)
        self._hold(survey, state.offsets)
        return state

    def _check_shared(self) -> None:
        """Check that tasks can read what the driver writes. JobError: the folder is not shared."""
        token = secrets.token_hex(16)
        path = (self._manifest.folder / f"{SHARED}-{token[:8]}").absolute()
        path.write_bytes(json.dumps(token).encode())
        try:
            (seen,) = run_tasks(self.spark, _read_token, [str(path)])
        finally:
            path.unlink(missing_ok=True)
        if seen.text != token:
            raise JobError(NOT_SHARED.format(folder=self._args.folder, host=seen.host))

    def _check_visible(self, files: Sequence[DataFile]) -> None:
        """Check that the driver can see the files that tasks report. JobError."""
        for one in files:
            path = self._manifest.archive / one.path
            try:
                found = path.stat().st_size
            except FileNotFoundError:
                raise JobError(NOT_THERE.format(path=path)) from None
            if found != one.bytes:
                raise JobError(WRONG_SIZE.format(path=path, found=found, said=one.bytes))

    def _work(self, batch: Batch, survey: Survey) -> list[Outcome]:
        """Run the tasks; retry those that did not reach their broker, after a pause."""
        deadline = time.monotonic() + self._args.patience_s
        outcomes: list[Outcome] = []
        remaining = list(batch.tasks)
        while remaining:
            works = [self._work_of(task, survey) for task in remaining]
            found = run_tasks(self.spark, _task, works, same_size=True)
            for outcome in found:
                if outcome.changed:
                    raise _ChangedError(outcome.failure)
                if outcome.failure and not outcome.retry:
                    raise JobError(FAILED_TASK.format(text=outcome.failure))
            outcomes += [outcome for outcome in found if not outcome.failure]
            failed = [outcome.failure for outcome in found if outcome.failure]
            remaining = [
                task for task, outcome in zip(remaining, found, strict=True) if outcome.failure
            ]
            if remaining:
                self.reporter(f"archive: {len(remaining)} of {len(works)} tasks wait: {failed[0]}")
                self._wait_for_broker(failed[0], deadline)
        return outcomes

    def _work_of(self, task: Sequence[OffsetRange], survey: Survey) -> Work:
        from broker.spark.archive.write import Work

        entry = survey.entries.get(TopicPartition(task[0].topic, task[0].partition))
        if entry is None and survey.down:
            raise JobError(
                BROKER_DOWN.format(text=DOWN.format(servers="; ".join(survey.down)), seconds=0)
            )
        if entry is None or entry.incarnation != task[0].incarnation:
            raise _ChangedError
        return Work(
            str(Path(self._args.folder).absolute()),
            self._access.servers[entry.server],
            entry.broker,
            self._access.options,
            tuple(task),
            self._args.key_header,
        )

    def _abandon(self, batch: Batch, state: State) -> None:
        self._sweep(batch, state)
        self._manifest.remove_saved(PENDING)

    def _sweep(self, batch: Batch, state: State) -> None:
        """Remove files of a batch that no version of the manifest names."""
        ranges = [one for task in batch.tasks for one in task]
        for topic in {one.topic for one in ranges}:
            top = self._manifest.archive / layout.topic_folder(topic)
            bounds = {
                (one.partition, layout.short_incarnation(one.incarnation)): (one.start, one.end)
                for one in batch.ranges
                if one.topic == topic
            }
            for path in top.glob("date=*/hour=[0-9]*/*"):  # but not those that `compact` is writing
                name = layout.parse_name(path.name)
                is_leftover = path.name.startswith(".") and path.suffix == ".tmp"
                if name is not None and (name.partition, name.incarnation) in bounds:
                    start, end = bounds[name.partition, name.incarnation]
                    unnamed = str(path.relative_to(self._manifest.archive)) not in state.files
                    is_leftover = start <= name.first and name.last < end and unnamed
                if is_leftover:
                    path.unlink(missing_ok=True)

    # --- reports and holds

    def _hold(self, survey: Survey, offsets: Offsets) -> None:
        if not self._args.hold:
            return
        progress = Progress(hold=True, ttl_s=self._args.hold_ttl_s, required=True)
        current = {
            tp: offset
            for tp, offset in offsets.items()
            if tp in survey.entries and survey.entries[tp].incarnation == offset.incarnation
        }
        try:
            self._brokers.put_progress(survey, current, f"archive-{self._manifest.id()}", progress)
        except Unauthorized as refused:
            raise JobError(MAY_NOT_HOLD.format(text=refused)) from refused
        except Refused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise
            self.reporter(f"archive: {NO_HOLDS.format(text=refused)}")
            self._args = replace(self._args, hold=False)

    def _report(
        self,
        state: State,
        survey: Survey,
        gaps: Sequence[Gap],
        files: Sequence[Any],
        seconds: float,
    ) -> None:
        for gap in gaps:
            self.reporter(f"archive: {planned.gap_text(gap)}; this is in the manifest")
        records = sum(one.records for one in files)
        self.batches, self.records = self.batches + 1, self.records + records
        self.gaps += len(gaps)
        lag = sum(
            max(entry.next - offset.seq, 0)
            for tp, entry in survey.entries.items()
            if (offset := state.offsets.get(tp)) is not None
            and offset.incarnation == entry.incarnation
        )
        done = Done(records, sum(one.bytes for one in files), seconds, lag)
        self.reporter(done.line("archive", self.batches))


def _task(work: Work) -> Outcome:
    from broker.spark.archive.write import write_ranges

    return write_ranges(work)


def _check_covered(batch: Batch, outcomes: Sequence[Outcome]) -> None:
    done = {one for outcome in outcomes for one in outcome.done}
    for task in batch.tasks:
        for one in task:
            if one not in done:
                raise JobError(NOT_COVERED.format(**one._asdict(), seq=one.start))


def build(
    spark: SparkSession, job: Job, archiving: ArchiveOptions, reporter: Reporter = print_line
) -> Archiver:
    return Archiver(spark, job, archiving, reporter)


@click.command("archive")
@click.argument("folder", metavar="DIR")
@job_options(topics=True, times=True, checkpoint=True)
@click.option("--batch-records", type=click.IntRange(1), default=BATCH_RECORDS, show_default=True)
@click.option(
    "--task-records",
    type=click.IntRange(1),
    default=PARTITION_RECORDS,
    show_default=True,
)
@click.option(
    "--on-loss",
    type=click.Choice(["error", "gap"]),
    default="error",
    show_default=True,
    help="If records were removed before they were archived: stop, or record a gap.",
)
@click.option(
    "--starting",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="First record of a new archive.",
)
@click.option(
    "--allow-missing",
    is_flag=True,
    help="Exit with 0 although a named topic does not exist.",
)
@click.option("--hold/--no-hold", default=True, help="Hold records until they are archived.")
@click.option("--hold-ttl", type=Duration(), default=float(HOLD_TTL_S), help="[default: 3d]")
@click.option("--key-header", help="Header whose value becomes the column `key`.")
@click.option(
    "--format",
    "kind",
    default="parquet",
    show_default=True,
    help="Format of the files: parquet, delta or iceberg.",
)
@click.option(
    "--option",
    "more",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option for the writer of the format.",
)
def command(job: Job, folder: str, kind: str, more: tuple[str, ...], **options: Any) -> None:
    """Write topics to Parquet files in DIR, each record exactly once.

    With another format, DIR is the path or the name of a table. Name its jars with --conf and give
    --checkpoint; of the options of this command only --on-loss and --starting apply then.
    """
    if kind != "parquet":
        table.run(job, folder, kind, more, options)
        return
    archiving = ArchiveOptions(
        folder,
        options["batch_records"],
        options["task_records"],
        gaps=options["on_loss"] == "gap",
        latest=options["starting"] == "latest",
        hold=options["hold"],
        hold_ttl_s=int(options["hold_ttl"]),
        key_header=options["key_header"],
        allow_missing=options["allow_missing"],
    )
    with session(job, "archive", light=True) as spark:
        archiver = build(spark, job, archiving)
        ends_with_signals(archiver.stop, "archive")
        archiver.run()
        print_line(f"archive: {archiver.records:,} records, {archiver.gaps} gaps, in {folder}")
        if archiver.stop.is_set() and job.every_s is None:
            raise JobError(STOPPED)
        if archiver.missing and job.every_s is None and not archiving.allow_missing:
            raise JobError(MISSING.format(topics="; ".join(archiver.missing)))


def main(argv: Sequence[str] | None = None) -> None:
    run(command, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
