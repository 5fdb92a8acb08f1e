"""The plan of a rollup: the ranges of logs or files of an archive that each task counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from broker.spark.archive.manifest import Manifest, State
from broker.spark.brokers import Brokers
from broker.spark.jobs.limits import FILE_BYTES_PER_TASK, FILES_PER_TASK, WINDOW_SETTLED_S
from broker.spark.offsets import Offset, Offsets, TopicPartition
from broker.spark.options import Access, Splitting, Wanted
from broker.spark.rollup.tasks import File, Since, Work
from broker.spark.source.planning import plan
from broker.spark.topics import Entry, Survey, unseen

SECOND_US = 10**6


@dataclass(slots=True)
class RollupPlan:
    """The work of one run."""

    works: list[Work] = field(default_factory=list)
    # The first seq of logs that are read from their beginning; earlier records were trimmed.
    bases: dict[tuple[str, int, str], int] = field(default_factory=dict)
    cut_events: set[int] = field(default_factory=set)  # brokers whose events topic is trimmed
    seqs: int = 0
    down: tuple[str, ...] = ()
    survey: Survey | None = None  # of brokers
    starts: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)

    def unseen(self, wanted: Wanted, events_topic: str) -> list[str]:
        """A line for each requested topic that no broker has."""
        if self.survey is None:
            return []
        events = Wanted(names=(events_topic,) if events_topic else ())
        return [*unseen(wanted, self.survey), *unseen(events, self.survey)]


def is_wanted(wanted: Wanted, events_topic: str, topic: str, partition: int) -> bool:
    return topic == events_topic or wanted.has(topic, partition)


def aligned(at_us: int, window_us: int) -> int:
    """The beginning of the window of a time."""
    return at_us // window_us * window_us


# --- from brokers


def live(access: Access, wanted: Wanted, events_topic: str, base: Work) -> RollupPlan:
    """Plan to count ranges of the brokers' logs."""
    with Brokers(access) as brokers:
        survey = brokers.survey(wanted, patient=True)
        if events_topic:
            events = brokers.survey(Wanted(names=(events_topic,)), patient=True)
            survey = replace(survey, entries={**survey.entries, **events.entries})
        starts = _start_seqs(brokers, survey, base.since)
        until = {} if base.until_us is None else _until(brokers, survey, base.until_us)
        rollup_plan = RollupPlan(down=survey.down, survey=survey)
        ranges = []
        for tp, entry in survey.entries.items():
            start = max(starts.get(tp, entry.first), entry.first)
            end = min(until.get(tp, entry.next), entry.next)
            _note_base(rollup_plan, entry, start, events_topic)
            rollup_plan.starts[tp] = Offset(start, entry.incarnation)
            rollup_plan.ends[tp] = Offset(max(start, end), entry.incarnation)
            if start < end:
                ranges.append(entry.read(start, end))
                rollup_plan.seqs += end - start
        for task in plan(ranges, Splitting()):
            server = access.servers[task[0].server]
            rollup_plan.works.append(
                replace(
                    base, server=server, broker=task[0].broker, options=access.options,
                    ranges=tuple(one.range for one in task),
                )
            )  # fmt: skip
    return rollup_plan


def _note_base(rollup_plan: RollupPlan, entry: Entry, start: int, events_topic: str) -> None:
    if start != entry.first or entry.first <= 1:
        return
    rollup_plan.bases[entry.tp.topic, entry.tp.partition, entry.incarnation] = start
    if entry.tp.topic == events_topic:
        rollup_plan.cut_events.add(entry.tp.partition)


def _start_seqs(brokers: Brokers, survey: Survey, since: Since) -> dict[TopicPartition, int]:
    times = {tp: since.of(tp.topic) // 1000 for tp in survey.entries}
    with_time = {tp: at for tp, at in times.items() if at > 0}
    found = brokers.find_times(survey, with_time) if with_time else {}
    return {p: survey.entries[p].next if seq is None else seq for p, seq in found.items()}


def _until(brokers: Brokers, survey: Survey, until_us: int) -> dict[TopicPartition, int]:
    # Events are written some time after the delivery; tasks ignore those after the end.
    at_ms = until_us // 1000 + WINDOW_SETTLED_S * 1000
    found = brokers.find_times(survey, dict.fromkeys(survey.entries, at_ms))
    return {tp: seq for tp, seq in found.items() if seq is not None}


# --- from an archive


def archived(folder: str, wanted: Wanted, events_topic: str, base: Work) -> RollupPlan:
    """Plan to count files of an archive."""
    manifest = Manifest(folder)
    state = manifest.load()
    rollup_plan = RollupPlan()
    chosen = [
        (
            File(
                str((manifest.archive / one.path).absolute()),
                one.topic,
                one.partition,
                one.incarnation,
            ),
            one,
        )
        for one in state.select()
        if is_wanted(wanted, events_topic, one.topic, one.partition)
        and one.to_us >= base.since.of(one.topic)
        and (base.until_us is None or one.from_us <= base.until_us + WINDOW_SETTLED_S * SECOND_US)
    ]
    for key, seq in _bases(state).items():
        if seq > 1:
            rollup_plan.bases[key] = seq
            if key[0] == events_topic:
                rollup_plan.cut_events.add(key[1])
    rollup_plan.seqs = sum(one.records for _, one in chosen)
    sized = [(file, one.bytes) for file, one in chosen]
    rollup_plan.works = [replace(base, files=tuple(files)) for files in _packed(sized)]
    return rollup_plan


def _bases(state: State) -> dict[tuple[str, int, str], int]:
    """The first archived seq of each log."""
    found: dict[tuple[str, int, str], int] = {}
    for one in state.ranges:
        key = (one.topic, one.partition, one.incarnation)
        found[key] = min(found.get(key, one.start), one.start)
    return found


def _packed(files: Sequence[tuple[File, int]]) -> Iterator[list[File]]:
    task: list[File] = []
    total = 0
    for file, size in files:
        if task and (len(task) == FILES_PER_TASK or total + size > FILE_BYTES_PER_TASK):
            yield task
            task, total = [], 0
        task.append(file)
        total += size
    if task:
        yield task
