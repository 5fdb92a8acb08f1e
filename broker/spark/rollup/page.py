"""The report of `rollup`: records, topics, deliveries and gaps in plots and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from broker.spark.jobs.limits import ATTEMPTS_SHOWN, REPORT_HOLES, REPORT_RANKS, REPORT_TOPICS
from broker.spark.report import charts, numbers
from broker.spark.report.charts import Plot, Series
from broker.spark.report.page import Child, Html, join, page, section, table, tag, tiles
from broker.spark.rollup import histogram

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RollupData:
    """The input of the report: rows of the store, in the order of time."""

    window_us: int
    from_us: int
    to_us: int
    topics: Sequence[Row]
    channels: Sequence[Row]
    holes: Sequence[Row] = ()  # reported by the run: topic, partition, first, next, reason
    foreign: int = 0  # records of the events topic that are not delivery events
    has_events: bool = True


class Missing(NamedTuple):
    """Seqs [first, next) of a log, some or all of them without a record."""

    topic: str
    partition: int
    first: int
    next: int
    lost: int  # number of seqs without a record
    window_start: int


@dataclass(slots=True)
class Sum:
    """The sum of rows of one topic."""

    records: int = 0
    bytes: int = 0
    size_min: float = float("inf")
    size_max: float = 0.0
    sizes: dict[int, int] = field(default_factory=dict)
    holes: int = 0
    by_window: dict[int, int] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.records += row["records"]
        self.bytes += row["bytes"]
        self.size_min = min(self.size_min, row["size_min"])
        self.size_max = max(self.size_max, row["size_max"])
        histogram.add(self.sizes, row["sizes"])
        start = row["window_start"]
        self.by_window[start] = self.by_window.get(start, 0) + row["records"]

    def size(self, part: float) -> str:
        return numbers.size(histogram.quantile(self.sizes, part, self.size_min, self.size_max))


@dataclass(slots=True)
class Deliveries:
    """The sum of rows of channels."""

    acked: int = 0
    dead: int = 0
    requeued: int = 0
    timed_out: int = 0
    closed: int = 0
    latency_max: int = 0
    latencies: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        for name in ("acked", "dead", "requeued", "timed_out", "closed"):
            setattr(self, name, getattr(self, name) + row[name])
        self.latency_max = max(self.latency_max, row["latency_max_ns"] or 0)
        histogram.add(self.latencies, row["latencies"])
        histogram.add(self.attempts, row["attempts"])

    @property
    def dead_share(self) -> float:
        return self.dead / max(self.acked + self.dead, 1)

    def latency(self, part: float) -> float | None:
        if not self.latencies:
            return None
        return histogram.quantile(self.latencies, part, most=self.latency_max)

    @property
    def mean_attempts(self) -> float:
        return sum(n * c for n, c in self.attempts.items()) / max(sum(self.attempts.values()), 1)


def missing(rows: Sequence[Row]) -> list[Missing]:
    """Missing seqs inside windows and between adjacent windows of the same log."""
    found = []
    logs: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        logs.setdefault((row["topic"], row["partition"], row["incarnation"]), []).append(row)
        if row["holes"] > 0:
            span = row["first"], row["last"] + 1, row["holes"]
            found.append(Missing(row["topic"], row["partition"], *span, row["window_start"]))
    for (topic, partition, _), log_rows in logs.items():
        for before, after in pairwise(sorted(log_rows, key=lambda row: int(row["first"]))):
            first, next_first = before["last"] + 1, after["first"]
            # An open window was read only in part, so a gap after it may be its unread records.
            known = not before["state"].startswith("open") and not after["state"].endswith("cut")
            if first < next_first and known:
                span = first, next_first, next_first - first
                found.append(Missing(topic, partition, *span, after["window_start"]))
    return sorted(found, key=lambda one: (one.topic, one.partition, one.first))


def rollup_page(shown: RollupData, made: datetime | None = None) -> str:
    """Build the page."""
    holes = missing(shown.topics)
    topics = _sums(shown.topics, holes)
    about = (
        f"{numbers.moment(shown.from_us)} to {numbers.moment(shown.to_us)} UTC, in windows of "
        f"{numbers.duration(shown.window_us * 1000.0)}."
    )
    if windows := _windows(shown, shown.topics):
        last = numbers.moment(windows[-1] + shown.window_us)
        about += f" Windows with records: {numbers.moment(windows[0])} to {last} UTC."
    body: list[Child] = [_tiles(shown, topics, holes), _records(shown, topics)]
    body.append(_topics(shown, topics))
    if shown.has_events:
        body.append(_deliveries(shown))
    else:
        text = (
            "How messages were delivered is not known here: give the topic of delivery events with "
            "--events. It is off unless the broker's configuration names one ([events])."
        )
        body.append(section("Deliveries", tag("p", text, class_="soft")))
    body.append(_holes(shown, holes))
    return page("Rollup", about, body, created=made)


def _sums(rows: Sequence[Row], holes: Sequence[Missing]) -> dict[str, Sum]:
    found: dict[str, Sum] = {}
    for row in rows:
        found.setdefault(row["topic"], Sum()).add(row)
    for hole in holes:
        found[hole.topic].holes += hole.lost
    return dict(sorted(found.items(), key=lambda item: (-item[1].records, item[0])))


def _tiles(shown: RollupData, topics: Mapping[str, Sum], holes: Sequence[Missing]) -> Html:
    total = Deliveries()
    for row in shown.channels:
        total.add(row)
    pairs = [
        (numbers.count(sum(one.records for one in topics.values())), "records"),
        (numbers.size(sum(one.bytes for one in topics.values())), "of bodies"),
        (numbers.exact(len(topics)), "topics"),
        (numbers.count(sum(one.lost for one in holes)), "seqs missing"),
    ]
    if shown.has_events:
        p99 = total.latency(0.99)
        pairs += [
            (numbers.count(total.acked), "acked"),
            (numbers.share(total.dead_share), "dead letters"),
            ("-" if p99 is None else numbers.duration(p99), "publish to ack, p99"),
        ]
    return tiles(*pairs)


def _windows(shown: RollupData, rows: Iterable[Row]) -> list[int]:
    """All windows from the first with a row to the last."""
    starts = {row["window_start"] for row in rows}
    if not starts:
        return []
    return list(range(min(starts), max(starts) + 1, shown.window_us))


def _records(shown: RollupData, topics: Mapping[str, Sum]) -> Html:
    windows = _windows(shown, shown.topics)
    labels = numbers.ticks(windows, shown.window_us)
    count, size = dict.fromkeys(windows, 0), dict.fromkeys(windows, 0)
    for row in shown.topics:
        count[row["window_start"]] += row["records"]
        size[row["window_start"]] += row["bytes"]
    per = f"in each window of {numbers.duration(shown.window_us * 1000.0)}, all topics together"
    largest = sorted(topics.items(), key=lambda item: -item[1].bytes)[:REPORT_RANKS]
    plots = [
        charts.bars(
            Plot("records", "Records", f"Records {per}.", numbers.count),
            labels, list(count.values()),
        ),
        charts.bars(
            Plot("bytes", "Bytes", f"Bytes of bodies {per}.", numbers.size, binary=True),
            labels, list(size.values()),
        ),
        charts.ranks(
            Plot("largest", "Largest topics", "Bytes of bodies of the largest topics.",
                 numbers.size),
            [(name, one.bytes) for name, one in largest],
        ),
    ]  # fmt: skip
    return section("Records", tag("div", plots, class_="plots"))


def _topics(shown: RollupData, topics: Mapping[str, Sum]) -> Html:
    windows = _windows(shown, shown.topics)
    rows: list[list[Child]] = []
    for name, one in list(topics.items())[:REPORT_TOPICS]:
        course = [one.by_window.get(at, 0) for at in windows]
        rows.append(
            [
                name,
                charts.spark_line(course, f"records of {name} over time"),
                numbers.exact(one.records),
                numbers.size(one.bytes),
                one.size(0.5),
                one.size(0.9),
                one.size(0.99),
                numbers.size(one.size_max),
                _alarm(one.holes, numbers.exact),
            ]
        )
    caption = f"Sizes are those of bodies.{_omitted(len(topics), REPORT_TOPICS, 'topics')}"
    head = (
        "topic",
        "over time",
        "records",
        "bytes",
        "size p50",
        "p90",
        "p99",
        "largest",
        "missing",
    )
    return section("Topics", table(caption, head, rows, words=2))


def _omitted(count: int, shown: int, what: str) -> str:
    return f" {count - shown:,} more {what} are in the Parquet files." if count > shown else ""


def _alarm(value: float, show: Callable[[float], str]) -> Child:
    return tag("span", show(value), class_="bad") if value else show(value)


def _deliveries(shown: RollupData) -> Html:
    channels: dict[tuple[str, str], Deliveries] = {}
    by_window: dict[int, Deliveries] = {}
    total, lost = Deliveries(), 0
    for row in shown.channels:
        lost += row["lost"]
        if not row["channel"] and row["lost"]:
            continue
        channels.setdefault((row["topic"], row["channel"]), Deliveries()).add(row)
        by_window.setdefault(row["window_start"], Deliveries()).add(row)
        total.add(row)
    notes: list[Child] = []
    if lost:
        text = f"{lost:,} events were not written; the numbers here do not include them."
        notes.append(tag("p", text, class_="bad"))
    if shown.foreign:
        text = f"{shown.foreign:,} records of the events topic are not delivery events."
        notes.append(tag("p", text, class_="bad"))
    plots = [_latency_plot(shown, by_window), _attempts_plot(total), _dead_plot(channels)]
    return section("Deliveries", notes, tag("div", plots, class_="plots"), _channels(channels))


def _latency_plot(shown: RollupData, by_window: Mapping[int, Deliveries]) -> Html:
    windows = _windows(shown, shown.channels)
    series = [
        Series(name, [one.latency(part) if (one := by_window.get(at)) else None for at in windows])
        for name, part in (("p50", 0.5), ("p99", 0.99))
    ]
    text = "Time from publish to ack in each window, all channels together; logarithmic."
    plot = Plot("latency", "Publish to ack", text, numbers.duration)
    return charts.lines(plot, numbers.ticks(windows, shown.window_us), series)


def _attempts_plot(total: Deliveries) -> Html:
    most = max(total.attempts, default=1)
    labels = [f"{n}+" if n == ATTEMPTS_SHOWN else str(n) for n in range(1, most + 1)]
    text = "Number of messages acked at each attempt; logarithmic."
    plot = Plot("attempts", "Attempts until the ack", text, numbers.count)
    values = [total.attempts.get(n, 0) for n in range(1, most + 1)]
    return charts.bars(plot, labels, values, logarithmic=True)


def _dead_plot(channels: Mapping[tuple[str, str], Deliveries]) -> Html:
    worst = sorted(
        ((f"{topic} / {name}", one.dead_share) for (topic, name), one in channels.items()),
        key=lambda item: (-item[1], item[0]),
    )
    rows = [(name, share) for name, share in worst if share > 0][:REPORT_RANKS]
    text = "Channels with the largest share of messages that became dead letters."
    if not rows:
        return tag("figure", tag("figcaption", "Dead letters"), tag("p", "None."))
    return charts.ranks(Plot("dead", "Dead letters", text, numbers.share), rows)


def _channels(channels: Mapping[tuple[str, str], Deliveries]) -> Html:
    rows: list[list[Child]] = []
    ordered = sorted(channels.items(), key=lambda item: (-item[1].acked, item[0]))
    for (topic, name), one in ordered[:REPORT_TOPICS]:
        latencies = [one.latency(0.5), one.latency(0.99)]
        rows.append(
            [
                topic,
                name,
                numbers.exact(one.acked),
                *("-" if value is None else numbers.duration(value) for value in latencies),
                numbers.duration(one.latency_max) if one.latencies else "-",
                f"{one.mean_attempts:.2f}" if one.attempts else "-",
                numbers.exact(one.requeued),
                numbers.exact(one.timed_out),
                numbers.exact(one.closed),
                _alarm(one.dead, numbers.exact),
                _alarm(one.dead_share, numbers.share),
            ]
        )
    caption = (
        "p50, p99, longest: time from publish to ack. Attempts: mean until the ack. Requeued, timed"
        " out, connection closed: how other attempts ended. Dead share: dead letters among all"
        f" messages that were finished.{_omitted(len(channels), REPORT_TOPICS, 'channels')}"
    )
    head = ("topic", "channel", "acked", "p50", "p99", "longest", "attempts", "requeued",
            "timed out", "connection closed", "dead letters", "dead share")  # fmt: skip
    return table(caption, head, rows, words=2)


def _holes(shown: RollupData, holes: Sequence[Missing]) -> Html:
    if not holes and not shown.holes:
        return section("Gaps", tag("p", "No sequence number is missing."))
    rows: list[list[Child]] = [
        [one.topic, str(one.partition), numbers.moment(one.window_start),
         f"{one.first:,} - {one.next - 1:,}", numbers.exact(one.lost)]
        for one in holes[:REPORT_HOLES]
    ]  # fmt: skip
    more = len(holes) - REPORT_HOLES
    caption = (
        "Sequence numbers without a record: trimmed, damaged, deleted by a limit, or never stored."
    )
    parts = [table(
        caption + (f" {more:,} more are in the Parquet files." if more > 0 else ""),
        ("topic", "broker", "window", "between", "missing"), rows, words=3,
    )]  # fmt: skip
    if shown.holes:
        unread: list[list[Child]] = [
            [str(one["topic"]), str(one["partition"]), str(one["reason"]),
             f"{one['first']:,} - {one['next'] - 1:,}"]
            for one in shown.holes[:REPORT_HOLES]
        ]  # fmt: skip
        head = ("topic", "broker", "why", "seqs")
        parts.append(table("Ranges that this run could not read.", head, unread, words=3))
    return section("Gaps", join(parts))
