"""`replay`: publishes records of an archive again, each once, however often the job is started.

    plan -> for each epoch: tasks stage their rows -> one commit -> the epoch is stored -> pause

The broker identifies an epoch by its number and the id of the replay. If an epoch was published and
the job was killed before it stored that, the broker does not publish it a second time.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from broker.client.bulk.connection import Connection
from broker.client.bulk.errors import Unauthorized
from broker.spark.archive import layout
from broker.spark.archive import replay as planned
from broker.spark.archive.manifest import Manifest, State, time_us
from broker.spark.archive.replay import Part, ReplaySelection
from broker.spark.jobs.command import (
    Done,
    Job,
    Reporter,
    Time,
    ends_with_signals,
    job_options,
    print_line,
    run,
    session,
)
from broker.spark.jobs.errors import (
    BAD_SUBJECT,
    BAD_WHERE,
    FAILED_TASK,
    NOTHING_TO_REPLAY,
    ONE_SERVER,
    REPLAY_CHANGED,
    REPLAY_ELSEWHERE,
    REPLAY_ID,
    STOPPED,
    JobError,
)
from broker.spark.jobs.limits import REPLAY_EPOCH_S, REPLAY_PART_RECORDS, REPLAY_RECORDS
from broker.spark.jobs.tasks import run_tasks
from broker.spark.offsets import OffsetRange
from broker.spark.options import is_subject_filter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.spark.archive.stage import Stage, Staged

_COLUMNS: Final = (
    "partition int, offset long, timestamp timestamp, subject string, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, notBefore timestamp"
)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of `replay` besides those of every job."""

    folder: str
    id: str
    selection: ReplaySelection
    # The options that define `selection`.
    selection_options: Mapping[str, str] = field(default_factory=dict)
    rate: float | None = None


class Replayer:
    """One run of the job. `stop` may be set by another thread or a signal."""

    def __init__(
        self, spark: SparkSession, job: Job, args: ReplayOptions, reporter: Reporter = print_line
    ) -> None:
        if re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", args.id) is None:
            raise JobError(REPLAY_ID)
        if args.selection.subject is not None and not is_subject_filter(args.selection.subject):
            raise JobError(BAD_SUBJECT.format(text=args.selection.subject))
        access = job.access
        if len(access.servers) != 1:
            raise JobError(ONE_SERVER)
        self.spark = spark
        self.reporter = reporter
        self.stop = threading.Event()
        self.records = 0
        self.remaining = 0  # seqs of the plan not published yet, including later epochs
        self._server, self._options = access.servers[0], access.options
        self._args = args
        self._selection = args.selection
        self._manifest = Manifest(args.folder)
        self._plan_path = f"replays/{args.id}.json"
        self._done_path = f"replays/{args.id}.done.json"

    def run(self) -> None:
        """Publish from the epoch after the last finished one to the end of the plan."""
        state = self._manifest.load()
        ranges = self._plan(state)
        self.remaining = sum(one.end - one.start for one in ranges)
        stored = self._manifest.saved(self._done_path)
        done = int(stored["epoch"]) if stored else 0
        start_s = time.monotonic()
        with Connection(self._server, self._options) as connection:
            broker = self._broker(connection)
            if done and broker and stored and stored.get("broker", broker) != broker:
                raise JobError(REPLAY_ELSEWHERE.format(id=self._args.id, server=self._server))
            all_ = planned.epochs(ranges, self._selection.epoch_records, REPLAY_PART_RECORDS)
            for epoch, parts in enumerate(all_, 1):
                if epoch > done and self.stop.is_set():
                    return
                self.remaining -= sum(part.range.end - part.range.start for part in parts)
                if epoch <= done:
                    continue
                state = self._publish(connection, epoch, parts, state)
                self._manifest.save(self._done_path, {"epoch": epoch, "broker": broker})
                self._pause(start_s)

    def _broker(self, connection: Connection) -> str:
        """The broker's id, which does not change with its address; empty if the token lacks the
        permission `read`."""
        try:
            return connection.topics(["-"]).broker_id
        except Unauthorized:
            return ""

    def _pause(self, start_s: float) -> None:
        if self._args.rate is not None:
            due = start_s + self.records / self._args.rate
            self.stop.wait(max(0.0, due - time.monotonic()))

    def _plan(self, state: State) -> list[OffsetRange]:
        stored = self._manifest.saved(self._plan_path)
        if stored is not None:
            had, self._selection, ranges = planned.load(stored)
            if had != self._args.selection_options:
                raise JobError(REPLAY_CHANGED.format(id=self._args.id, options=_options_text(had)))
            return ranges
        ranges = planned.ranges_of(state, self._selection)
        if not ranges:
            raise JobError(NOTHING_TO_REPLAY.format(folder=self._args.folder))
        if self._selection.where is not None:
            self._choose(ranges, state)
        self._manifest.save(
            self._plan_path, planned.dump(self._args.selection_options, self._selection, ranges)
        )
        return ranges

    def _publish(
        self, connection: Connection, epoch: int, parts: Sequence[Part], state: State
    ) -> State:
        start_s = time.monotonic()
        state = self._current(state, parts)
        # The archive is part of the writer's name, because the same replay id in another archive
        # is another replay.
        writer = f"replay-{self._manifest.id()}-{self._args.id}"
        staged = self._stage(writer, epoch, parts, state)
        topics: dict[str, list[tuple[int, str | int, int]]] = defaultdict(list)
        for one in sorted(staged, key=lambda one: one.part):
            topics[one.topic].append((one.part, one.attempt, one.bytes))
        if topics:
            connection.commit(writer, epoch, topics)
        records = sum(one.records for one in staged)
        self.records += records
        size = sum(one.bytes for one in staged)
        self.reporter(
            Done(records, size, time.monotonic() - start_s, self.remaining).line("replay", epoch)
        )
        return state

    def _current(self, state: State, parts: Sequence[Part]) -> State:
        """Read the manifest again: `compact` may have replaced the files."""
        for part in parts:
            for file in planned.files_of(state, part, self._selection):
                if not (self._manifest.archive / file.path).exists():
                    return self._manifest.load()
        return state

    def _stage(self, writer: str, epoch: int, parts: Sequence[Part], state: State) -> list[Staged]:
        from broker.spark.archive.stage import Stage

        archive = self._manifest.archive.absolute()
        stages = [
            Stage(
                self._server,
                self._options,
                writer,
                epoch,
                part,
                tuple(str(archive / file.path) for file in files),
                self._selection,
                self._chosen(part.range),
            )
            for part in parts
            if (files := planned.files_of(state, part, self._selection))
        ]
        staged = run_tasks(self.spark, _task, stages, same_size=True)
        for one in staged:
            if one.failure:
                raise JobError(FAILED_TASK.format(text=one.failure))
        return [one for one in staged if one.records]

    # --- conditions in SQL

    def _chosen(self, one: OffsetRange) -> str | None:
        """The folder with the offsets of a log that `--where` has selected."""
        if self._selection.where is None:
            return None
        name = layout.escape(f"{one.topic}-{one.partition}-{one.incarnation}")
        return str(self._chosen_folder.absolute() / hashlib.sha256(name.encode()).hexdigest()[:32])

    @property
    def _chosen_folder(self) -> Path:
        return self._manifest.folder / "replays" / f"{self._args.id}.chosen"

    def _choose(self, ranges: Sequence[OffsetRange], state: State) -> None:
        """Let Spark select the offsets once, before the first record is published."""
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as f

        for one in ranges:
            files = planned.files_of(state, Part(0, one), self._selection)
            paths = [str(self._manifest.archive.absolute() / file.path) for file in files]
            rows = self.spark.read.schema(_COLUMNS).parquet(*paths)
            try:
                rows = rows.withColumn("topic", f.lit(one.topic)).where(
                    self._selection.where or "true"
                )
                rows.select("offset").write.mode("overwrite").parquet(self._chosen(one) or "")
            except PySparkException as error:
                raise JobError(
                    BAD_WHERE.format(text=str(error).strip().partition("\n")[0])
                ) from error


def _task(stage: Stage) -> Staged:
    from broker.spark.archive.stage import stage_part

    return stage_part(stage)


def _options_text(selection_options: Mapping[str, str]) -> str:
    return " ".join(f"--{name} {value}" for name, value in sorted(selection_options.items()))


def build(
    spark: SparkSession, job: Job, args: ReplayOptions, reporter: Reporter = print_line
) -> Replayer:
    return Replayer(spark, job, args, reporter)


def epoch_records(rate: float | None) -> int:
    """The number of records of an epoch. All are published at once, so `--rate` makes epochs
    short."""
    if rate is None:
        return REPLAY_RECORDS
    return max(1, min(REPLAY_RECORDS, int(rate * REPLAY_EPOCH_S)))


@click.command("replay")
@click.argument("folder", metavar="DIR")
@job_options()
@click.option(
    "--replay-id", required=True, help="Name of this replay; a run with the same id resumes it."
)
@click.option("--to", required=True, help="Topic to publish to; {topic} is the original one.")
@click.option("--topics", help="Names of topics, separated by commas.  [default: all]")
@click.option("--since", help="From this time (UTC), or an age such as 6h.")
@click.option("--until", help="Before this time.")
@click.option("--subject", help="Only these subjects: orders.*.new, orders.>")
@click.option("--where", help="A condition in SQL: \"partition = 0 and value like '%x%'\".")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum records per second.")
def command(job: Job, folder: str, replay_id: str, **options: Any) -> None:
    """Publish records of the archive in DIR again, each once."""
    times = {name: _us(options[name]) for name in ("since", "until")}
    selection = ReplaySelection(
        options["to"],
        tuple(options["topics"].split(",")) if options["topics"] else None,
        times["since"],
        times["until"],
        options["subject"],
        options["where"],
        epoch_records(options["rate"]),
    )
    Manifest(folder).id()
    rate = options.pop("rate")  # a replay may continue on another one
    selection_options = {name: value for name, value in options.items() if value is not None}
    with session(job, "replay", light=selection.where is None) as spark:
        replayer = build(
            spark, job, ReplayOptions(folder, replay_id, selection, selection_options, rate)
        )
        ends_with_signals(replayer.stop, "replay")
        replayer.run()
        print_line(f"replay: {replayer.records:,} records of {folder}")
        if replayer.remaining:
            raise JobError(STOPPED)


def _us(text: str | None) -> int | None:
    return None if text is None else time_us(Time().convert(text, None, None))


def main(argv: Sequence[str] | None = None) -> None:
    run(command, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
