"""`rollup`: counts records, sizes and delivery outcomes by topic and window.

    plan -> tasks count ranges of logs, or files of an archive -> Parquet by window -> a report

Each run counts the windows that were open at the last run again, and all later ones. A window is
written as a whole, so a run may be repeated, or follow one that was killed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.client.bulk.errors import Unauthorized
from broker.spark.archive.manifest import time_us
from broker.spark.brokers import Brokers
from broker.spark.errors import DOWN
from broker.spark.jobs.command import (
    Duration,
    Job,
    Reporter,
    Time,
    ends_with_signals,
    job_options,
    print_line,
    run,
    session,
)
from broker.spark.jobs.errors import MAY_NOT_HOLD, SERVERS_OR_ARCHIVE, JobError
from broker.spark.jobs.limits import (
    HOLD_TTL_S,
    REPORT_DAYS,
    WINDOW_S,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    WINDOW_SETTLED_S,
)
from broker.spark.jobs.tasks import spread
from broker.spark.offsets import TopicPartition
from broker.spark.options import Progress
from broker.spark.rollup import plan
from broker.spark.rollup.plan import SECOND_US, RollupPlan, aligned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.spark.rollup.store import Row
    from broker.spark.rollup.tasks import Counted, Work

DAY_US = 24 * 3600 * SECOND_US


@dataclass(frozen=True, slots=True)
class RollupOptions:
    """Options of `rollup` besides those of every job."""

    folder: str
    window_s: int = WINDOW_S
    archive: str = ""  # count its files, not the brokers' logs
    events_topic: str = ""
    since: datetime | None = None  # None: where the last run ended
    until: datetime | None = None
    report: str = ""  # path of the report; "": report.html in the folder
    report_days: float = REPORT_DAYS
    hold: bool = True
    hold_ttl_s: int = HOLD_TTL_S


class Roller:
    """One run of the job. `stop` may be set by another thread or a signal."""

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        rollup_options: RollupOptions,
        reporter: Reporter = print_line,
    ) -> None:
        from broker.spark.rollup.store import Store

        self.spark = spark
        self.job = job
        self.args = rollup_options
        self.reporter = reporter
        self.stop = threading.Event()
        self.store = Store(rollup_options.folder, rollup_options.window_s)
        self.windows = self.records = 0

    def run(self) -> None:
        """Run once, or repeat until `stop` is set."""
        with self.store.lock():
            self.job.repeat(self.stop, self.count)

    def count(self, now_us: int | None = None) -> Sequence[str]:
        """Count new records and write the report; return the brokers not reached."""
        from broker.spark.rollup.store import channel_rows, states_of
        from broker.spark.rollup.tasks import count

        began = time.monotonic()
        now = time.time_ns() // 1000 if now_us is None else now_us
        plan = self._create_plan()
        if plan.down:
            self.reporter(f"rollup: {DOWN.format(servers='; '.join(plan.down))}")
        wanted, events = self.job.wanted, self.args.events_topic
        for text in plan.unseen(wanted, events):
            self.reporter(f"rollup: {text}")
        counted = _sum(spread(self.spark, count, plan.works, self.reporter))
        window_us = self.args.window_s * SECOND_US
        settled_us = now - WINDOW_SETTLED_S * SECOND_US
        topics = states_of(counted, window_us, settled_us, plan.bases)
        channels = channel_rows(counted, window_us, settled_us, frozenset(plan.cut_events))
        self.windows = self.store.write(topics, channels, settled_us)
        self.records = sum(row["records"] for row in topics)
        self._hold(plan, topics)
        path = self._report(counted, now)
        self.reporter(
            f"rollup: {self.records:,} records and {sum(n for n, _ in counted.events.values()):,} "
            f"events in {self.windows:,} windows, {time.monotonic() - began:.1f} s; {path}"
        )
        return plan.down

    def _create_plan(self) -> RollupPlan:
        args, wanted = self.args, self.job.wanted
        base = self._common_work()
        if args.archive:
            return plan.archived(args.archive, wanted, args.events_topic, base)
        return plan.live(self.job.access, wanted, args.events_topic, base)

    def _common_work(self) -> Work:
        """The input that all tasks have in common."""
        from broker.spark.rollup.tasks import Since, Work

        args, window_us = self.args, self.args.window_s * SECOND_US
        since, until = time_us(args.since), time_us(args.until)
        partitions = self.store.resume_times("topics")
        partitions[args.events_topic] = self.store.resume_times("channels").get("", 0)
        begin = Since(None if since is None else aligned(since, window_us), partitions)
        end = None if until is None else -(-until // window_us) * window_us
        return Work(window_us, begin, end, args.events_topic)

    def _hold(self, plan: RollupPlan, topics: Sequence[Row]) -> None:
        """Hold the records of open windows, which the next run counts again."""
        from broker.spark.rollup.store import is_open

        args = self.args
        if plan.survey is None or not args.hold or args.since or args.until:
            return
        offsets = dict(plan.ends)
        for row in topics:
            tp = TopicPartition(row["topic"], row["partition"])
            if is_open(row) and offsets[tp].incarnation == row["incarnation"]:
                first = min(offsets[tp].seq, row["first"])
                offsets[tp] = offsets[tp]._replace(seq=first)
        # It is unknown which records of the events topic belong to which window.
        offsets |= {p: offset for p, offset in plan.starts.items() if p.topic == args.events_topic}
        progress = Progress(hold=True, ttl_s=args.hold_ttl_s, required=True)
        with Brokers(self.job.access) as brokers:
            try:
                brokers.put_progress(plan.survey, offsets, f"rollup-{self.store.id()}", progress)
            except Unauthorized as refused:
                raise JobError(MAY_NOT_HOLD.format(text=refused)) from refused

    def _report(self, counted: Counted, now_us: int) -> Path:
        from broker.spark.report.page import write
        from broker.spark.rollup.page import RollupData, rollup_page

        end = time_us(self.args.until) or now_us
        start = time_us(self.args.since) or int(end - self.args.report_days * DAY_US)
        window_us = self.args.window_s * SECOND_US
        shown = RollupData(
            window_us,
            aligned(start, window_us),
            end,
            self.store.rows("topics", aligned(start, window_us), end),
            self.store.rows("channels", aligned(start, window_us), end),
            [hole._asdict() for hole in counted.holes],
            counted.foreign,
            bool(self.args.events_topic),
        )
        return write(self.args.report or Path(self.args.folder) / "report.html", rollup_page(shown))


def _sum(outcomes: Sequence[Counted]) -> Counted:
    from broker.spark.rollup.tasks import Counted

    total = Counted()
    for one in outcomes:
        total.add(one)
    return total


def build(
    spark: SparkSession, job: Job, rollup_options: RollupOptions, reporter: Reporter = print_line
) -> Roller:
    return Roller(spark, job, rollup_options, reporter)


_OPTIONS = (
    click.option(
        "--window",
        type=Duration(),
        default=float(WINDOW_S),
        help="Length of the windows that are counted.  [default: 1h]",
    ),
    click.option("--archive", metavar="DIR", help="Count an archive instead of the brokers' logs."),
    click.option(
        "--events", metavar="TOPIC", help="Topic of the delivery events ([events] topic)."
    ),
    click.option("--since", type=Time(), help="[default: where the last run ended]"),
    click.option("--until", type=Time(), help="[default: now]"),
    click.option("--hold/--no-hold", default=True, help="Hold records until they are counted."),
    click.option("--hold-ttl", type=Duration(), default=float(HOLD_TTL_S), help="[default: 3d]"),
    click.option("--report", metavar="FILE", help="[default: DIR/report.html]"),
    click.option(
        "--report-days",
        type=click.FloatRange(0, min_open=True),
        default=float(REPORT_DAYS),
        show_default=True,
        help="Period of the report, including earlier runs.",
    ),
)


def _options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("rollup")
@click.argument("folder", metavar="DIR")
@job_options(servers=None, topics=True, times=True)
@_options
def command(job: Job, folder: str, **options: Any) -> None:
    """Count records and deliveries by topic and window: Parquet files and a report in DIR."""
    if not options["archive"] and not job.servers.get("servers"):
        raise click.UsageError(SERVERS_OR_ARCHIVE)
    window_s = int(options["window"])
    if not WINDOW_S_MIN <= window_s <= WINDOW_S_MAX:
        raise click.BadParameter(f"between {WINDOW_S_MIN}s and 7d", param_hint="--window")
    rollup_options = RollupOptions(
        folder,
        window_s,
        options["archive"] or "",
        options["events"] or "",
        options["since"],
        options["until"],
        options["report"] or "",
        options["report_days"],
        options["hold"],
        int(options["hold_ttl"]),
    )
    with session(job, "rollup") as spark:
        roller = build(spark, job, rollup_options)
        ends_with_signals(roller.stop, "rollup")
        roller.run()


def main(argv: Sequence[str] | None = None) -> None:
    run(command, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
