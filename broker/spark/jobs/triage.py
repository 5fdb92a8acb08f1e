"""`triage`: groups dead letters, shows samples, and sends chosen groups back to their topics.

    survey -> tasks group the dead letters -> [--requeue] tasks stage some -> one commit per group
    -> report

A group is sent back to its origin topic, on the broker that stores it, for all channels there. The
broker knows which dead letters were sent back: each group has a writer whose epoch is the seq up to
which they were sent, in the same commit. So a repeated run sends only newer ones, and none twice.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.client.bulk.errors import Unauthorized
from broker.spark.brokers import Brokers
from broker.spark.errors import DOWN, BrokerDownError
from broker.spark.jobs.command import Job, Reporter, job_options, print_line, run, session
from broker.spark.jobs.errors import (
    CANNOT_GO_BACK,
    NO_SUCH_GROUP,
    NO_WRITER,
    ORIGIN_GONE,
    STILL_COMMITTING,
    WHICH_TOPICS,
    JobError,
)
from broker.spark.jobs.limits import REMEMBERED_S, REPORT_GROUPS
from broker.spark.jobs.tasks import spread
from broker.spark.offsets import TopicPartition
from broker.spark.options import Splitting, Wanted
from broker.spark.source.planning import plan
from broker.spark.topics import Survey, unseen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.spark.triage.tasks import Found, Key, SentBack, Work

DEAD = r".*\.dead"
ALL = "all"


@dataclass(frozen=True, slots=True)
class TriageOptions:
    """Options of `triage` besides those of every job."""

    report: str = "triage.html"
    samples: bool = True  # bodies in the report
    requeue: tuple[str, ...] = ()  # ids of groups, or ALL
    older: bool = False  # also dead letters that are older than the brokers' records of commits


class Triage:
    """One run of the job."""

    def __init__(
        self, spark: SparkSession, job: Job, args: TriageOptions, reporter: Reporter = print_line
    ) -> None:
        self.spark = spark
        self.job = job if job.topics else replace(job, topics={"subscribePattern": DEAD})
        self.args = args
        self.reporter = reporter

    def run(self) -> Found:
        """Group the dead letters, send back the chosen groups, write the report."""
        with Brokers(self.job.access) as brokers:
            survey = brokers.survey(self.job.wanted, patient=True)
            requested = self.job.wanted
            for text in unseen(requested, survey) if requested.pattern != DEAD else ():
                self.reporter(f"triage: {text}")
            found = self._examine(survey)
            groups = self._chosen(found)
            found.sent = self._sent(brokers, survey, found)
            if groups:
                self._send_back(brokers, survey, found, groups)
        self._report(found)
        if found.down:
            raise BrokerDownError(DOWN.format(servers="; ".join(found.down)))
        return found

    def _examine(self, survey: Survey) -> Found:
        from broker.spark.triage.tasks import Found, Outcome, examine

        total = Outcome()
        for one in spread(self.spark, examine, self._works(survey), self.reporter):
            total.add(one)
        found = Found(total.groups, total.hours, holes=total.holes, down=survey.down)
        letters = sum(group.count for group in found.groups.values())
        self.reporter(f"triage: {letters:,} dead letters in {len(found.groups):,} groups")
        return found

    def _works(self, survey: Survey) -> list[Work]:
        from broker.spark.triage.tasks import Work

        ranges = [entry.read(entry.first, entry.next) for entry in survey.entries.values()]
        access = self.job.access
        return [
            Work(
                number,
                access.servers[task[0].server],
                task[0].broker,
                access.options,
                tuple(one.range for one in task),
                self.args.samples,
            )
            for number, task in enumerate(plan(ranges, Splitting()))
        ]

    def _chosen(self, found: Found) -> list[Key]:
        """The groups to send back. JobError: one of them cannot be sent."""
        if not self.args.requeue:
            return []
        known = {key.id: key for key in found.groups}
        if ALL in self.args.requeue:
            return [key for key in known.values() if key.can_go_back]
        for group in self.args.requeue:
            if group not in known:
                raise JobError(NO_SUCH_GROUP.format(group=group))
            if not known[group].can_go_back:
                raise JobError(CANNOT_GO_BACK.format(group=group, reason=known[group].reason))
        return [known[group] for group in dict.fromkeys(self.args.requeue)]

    # --- what was sent back before

    def _sent(self, brokers: Brokers, survey: Survey, found: Found) -> dict[str, dict[int, int]]:
        """For each group the seq up to which it was sent back; empty if the token lacks the
        permission."""
        sent: dict[str, dict[int, int]] = {}
        ordered = sorted(found.groups, key=lambda key: -found.groups[key].count)
        requested = {key.id for key in ordered[:REPORT_GROUPS]} | set(self.args.requeue)
        for key in ordered:
            if not key.can_go_back or (key.id not in requested and ALL not in self.args.requeue):
                continue
            for partition in found.groups[key].spans:
                try:
                    upto = self._epoch(brokers, survey, key, partition)
                except Unauthorized as refused:
                    if self.args.requeue:
                        raise JobError(NO_WRITER.format(text=refused)) from refused
                    return {}
                if upto:
                    sent.setdefault(key.id, {})[partition] = upto
        return sent

    def _epoch(self, brokers: Brokers, survey: Survey, key: Key, partition: int) -> int:
        from broker.spark.triage.tasks import writer_of

        entry = survey.entries[TopicPartition(key.topic, partition)]
        state = brokers.at(entry.server).committed(writer_of(key.id, entry.incarnation))
        if state.get("committing") is not None and self.args.requeue:
            raise JobError(STILL_COMMITTING.format(group=key.id))
        topic_state = state.get("topics", {}).get(key.origin)
        return int(topic_state["epoch"]) if topic_state else 0

    # --- sending back

    def _send_back(
        self, brokers: Brokers, survey: Survey, found: Found, groups: Sequence[Key]
    ) -> None:
        from broker.spark.triage.tasks import stage

        self._check_origins(brokers, found, groups)
        oldest_us = 0 if self.args.older else int((time.time() - REMEMBERED_S) * 10**6)
        works = []
        for work in self._works(survey):
            epochs = self._epochs(survey, found, groups, work.ranges[0].partition)
            topics = {key.topic for key in groups}
            ranges = tuple(one for one in work.ranges if one.topic in topics)
            if ranges and epochs:
                works.append(replace(work, epochs=epochs, ranges=ranges, oldest_us=oldest_us))
        outcomes = spread(self.spark, stage, works, self.reporter)
        found.skipped = sum(one.skipped for one in outcomes)
        for key in groups:
            for partition in found.groups[key].spans:
                entries = [
                    one.staged[key.id]
                    for work, one in zip(works, outcomes, strict=True)
                    if key.id in one.staged and work.ranges[0].partition == partition
                ]
                if entries:
                    found.back.append(self._commit(brokers, survey, key, partition, entries))

    def _epochs(
        self, survey: Survey, found: Found, groups: Sequence[Key], partition: int
    ) -> Mapping[str, tuple[int, int]]:
        """For each group the seq after the last dead letter that was sent back, and the seq after
        the last dead letter."""
        return {
            key.id: (found.sent.get(key.id, {}).get(partition, 0), entry.next)
            for key in groups
            if (entry := survey.entries.get(TopicPartition(key.topic, partition))) is not None
        }

    def _check_origins(self, brokers: Brokers, found: Found, groups: Sequence[Key]) -> None:
        """Check the origins of dead letters: their headers are untrusted. JobError."""
        partitions = {
            TopicPartition(key.origin, partition): key
            for key in groups
            for partition in found.groups[key].spans
        }
        names = Wanted(names=tuple(sorted({tp.topic for tp in partitions})))
        existing = brokers.survey(names, patient=True).entries
        for tp, key in partitions.items():
            if tp not in existing:
                raise JobError(ORIGIN_GONE.format(group=key.id, **tp._asdict()))

    def _commit(
        self,
        brokers: Brokers,
        survey: Survey,
        key: Key,
        partition: int,
        staged: Sequence[tuple[int, str, int, int, str]],
    ) -> SentBack:
        from broker.spark.triage.tasks import writer_of

        entry = survey.entries[TopicPartition(key.topic, partition)]
        parts = [(part, attempt, size) for part, attempt, size, _, _ in sorted(staged)]
        answer = brokers.at(entry.server).commit(
            writer_of(key.id, entry.incarnation), entry.next, {key.origin: parts}
        )[key.origin]
        count = sum(one[3] for one in staged)
        server = self.job.access.servers[entry.server]
        self.reporter(
            f"triage: {count:,} dead letters of {key.id} were sent back to {key.origin} ({server})"
        )
        from broker.spark.triage.tasks import SentBack

        return SentBack(
            key.id, server, key.origin, count, answer.first, answer.last, answer.already
        )

    def _report(self, found: Found) -> Path:
        from broker.spark.report.page import write
        from broker.spark.triage.page import triage_page

        path = write(self.args.report, triage_page(found, self.job.servers.get("servers", "")))
        self.reporter(f"triage: {path}")
        return path


def build(
    spark: SparkSession, job: Job, args: TriageOptions, reporter: Reporter = print_line
) -> Triage:
    return Triage(spark, job, args, reporter)


def listed(found: Found) -> list[dict[str, Any]]:
    """The groups as lines of JSON, the largest first."""
    rows = []
    for key, group in sorted(found.groups.items(), key=lambda item: (-item[1].count, item[0])):
        rows.append(
            {
                "group": key.id,
                **key._asdict(),
                "count": group.count,
                "bytes": group.bytes,
                "first_us": group.first_us,
                "last_us": group.last_us,
                "can_go_back": key.can_go_back,
                "sent_up_to": {str(p): seq for p, seq in found.sent.get(key.id, {}).items()},
            }
        )
    return rows


@click.command("triage")
@job_options()
@click.option("--topics", help="Dead-letter topics, separated by commas.")
@click.option("--pattern", help=f"A regular expression for them.  [default: {DEAD}]")
@click.option("--report", default="triage.html", show_default=True, metavar="FILE")
@click.option("--samples/--no-samples", default=True, help="Include sample bodies in the report.")
@click.option("--json", "as_json", is_flag=True, help="Print the groups as lines of JSON.")
@click.option(
    "--requeue",
    multiple=True,
    metavar="GROUP",
    help='Send this group back to its topic; may be repeated. "all": every group.',
)
@click.option(
    "--older",
    is_flag=True,
    help="Also send back dead letters older than 29 days; some may be sent twice.",
)
def command(job: Job, *, as_json: bool, **options: Any) -> None:
    """Group dead letters by reason, origin and shape, and send groups back."""
    named = {"subscribe": options["topics"], "subscribePattern": options["pattern"]}
    if all(named.values()):
        raise click.UsageError(WHICH_TOPICS)
    job = replace(job, topics={name: text for name, text in named.items() if text})
    args = TriageOptions(
        options["report"], options["samples"], options["requeue"], options["older"]
    )
    with session(job, "triage") as spark:
        found = build(spark, job, args).run()
    for row in listed(found) if as_json else ():
        click.echo(json.dumps(row, ensure_ascii=True))
    if found.skipped:
        print_line(
            f"triage: {found.skipped:,} dead letters are too old to send back; --older sends them"
        )


def main(argv: Sequence[str] | None = None) -> None:
    run(command, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
