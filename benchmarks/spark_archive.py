"""The archive job on local Spark: its speed, its cost, and whether the cost is linear.

    python benchmarks/spark_archive.py [--records 2000000] [--rounds 3] [--live] [--one-core]
        [--scale 1,4,16] [--write]

One broker, four topics, read through its bulk API on this machine. For comparison one process
converts the same records in two ways: with PyArrow's writer (zstd, otherwise its defaults), and
with the archive's own writer, which two cores can at best make twice as fast.
Rounds alternate and ratios are taken within a round, with the JVM warm. --live measures NATS
requests and an NSQ topic at a steady rate without and with an archive running, with --one-core
while Spark is held to one core; --scale archives this many million records, each in a new broker,
and reports time, CPU and memory. Spark and the
conversions run at nice 19, as on a machine with a working broker; the load runs at real-time
priority if permitted, so that the broker is the bottleneck.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import report
from bulk_api import fill, processor_seconds, start

from broker.bench.scenarios import NatsRequestPlan, NsqFlowPlan, run_nats_request, run_nsq_flow
from broker.client.bulk.connection import Connection as BulkConnection
from broker.client.bulk.reading import iter_arrow
from broker.spark.archive.manifest import Manifest
from broker.spark.archive.write import COLUMNS, HourFiles
from broker.spark.jobs.archive import ArchiveOptions, build
from broker.spark.jobs.command import Job, session
from broker.spark.jobs.limits import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from broker.spark.offsets import OffsetRange

TOPICS = ("bench0", "bench1", "bench2", "bench3")
LOAD_SECONDS = 5.0
NSQ_RATE = 2000.0
NAMES = [name for name in COLUMNS if name != "key"]
GOAL_SPEED = 1.5
GOAL_P99 = 1.5


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def load(pipe: Connection) -> None:
    """A process that loads the broker on request: NATS, then NSQ."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    while (ports := pipe.recv()) is not None:
        (nats, nsq) = ((host, int(port)) for host, port in (p.split(":") for p in ports))
        requests = run_nats_request(NatsRequestPlan(address=nats, seconds=LOAD_SECONDS))
        flow = run_nsq_flow(
            NsqFlowPlan(address=nsq, seconds=LOAD_SECONDS, rate=NSQ_RATE, batch=1, topic="live")
        )
        assert requests.latency_us is not None
        assert flow.latency_us is not None
        pipe.send((requests.latency_us["p99"], flow.latency_us["p99"]))


@contextmanager
def broker(folder: Path, records: int, size: int) -> Iterator[tuple[int, dict[str, str]]]:
    """A broker with this many records in its topics."""
    child, ports = start(folder)
    try:
        for topic in TOPICS:
            fill(ports["nsq_http"], topic, records // len(TOPICS), size)
        # Records that are not on the disk yet would not be archived.
        with BulkConnection(ports["bulk"]) as bulk:
            while any(t.next - t.first < records // len(TOPICS) for t in bulk.topics().topics):
                time.sleep(0.1)
        yield child.pid, ports
    finally:
        child.terminate()
        child.wait()


def convert(bulk: str, folder: Path) -> None:
    """One process, one file per topic, with PyArrow's defaults."""
    folder.mkdir()
    for topic in TOPICS:
        batches = iter_arrow(bulk, topic, columns=NAMES)
        first = next(batches)
        path = folder / f"{topic}.parquet"
        with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)


def convert_alike(bulk: str, folder: Path) -> None:
    """One process, one file per topic, with the writer of the archive's tasks."""
    folder.mkdir()
    for topic in TOPICS:
        with HourFiles(folder, OffsetRange(topic, 0, "0", 0, 0), NAMES) as hours:
            for batch in iter_arrow(
                bulk, topic, columns=NAMES, max_rows=ROW_GROUP_ROWS, max_bytes=ROW_GROUP_BYTES
            ):
                hours.add(batch)
            hours.finish()


def archive(spark: Any, bulk: str, folder: Path) -> int:
    """Archive the topics; return the number of records."""
    job = Job({"servers": bulk}, {"subscribe": ",".join(TOPICS)})
    archiver = build(spark, job, ArchiveOptions(str(folder), hold=False), lambda _line: None)
    archiver.run()
    assert archiver.records == sum(one.records for one in Manifest(folder).load().select())
    return archiver.records


def compare(
    spark: Any, bulk: str, folder: Path, *, records: int, rounds: int, name: str
) -> list[list[str]]:
    """A row for each way; `name`: of the archive with its cores."""
    ways: dict[str, Callable[[], object]] = {
        "PyArrow, 1 process": lambda: convert(bulk, folder / "out"),
        "the archive's writer, 1 process": lambda: convert_alike(bulk, folder / "out"),
        name: lambda: archive(spark, bulk, folder / "out"),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for one, way in ways.items():
            began = time.perf_counter()
            way()
            if number:  # warms up the JVM and the workers
                took[one].append(time.perf_counter() - began)
            shutil.rmtree(folder / "out")
    (plain, plain_s), (alike, alike_s), (_, archive_s) = took.items()
    rows = [
        [one, f"{records / statistics.median(took[one]) / 1e6:.2f} M records/s", "", "", ""]
        for one in took
    ]
    for beside, seconds, goal in ((plain, plain_s, GOAL_SPEED), (alike, alike_s, 0.0)):
        ratios = [a / b for a, b in zip(seconds, archive_s, strict=True)]
        ratio = statistics.median(ratios)
        wanted = [f">= {goal}", report.verdict(ratio, goal)] if goal else ["", ""]
        label = f"{name}, compared with: {beside}"
        rows.append([label, f"{ratio:.2f} x", report.spread(ratios), *wanted])
    return rows


def descendants(roots: Iterable[int]) -> set[int]:
    """These processes and all that they have started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = set(roots)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


@contextmanager
def pinned_to_last_core(spared: set[int]) -> Iterator[None]:
    """Pin this process and its descendants, except `spared` and theirs, to the last core until the
    block ends. Processes that they start meanwhile stay pinned."""
    cores = os.sched_getaffinity(0)
    pids = descendants([os.getpid()]) - descendants(spared)

    def pin(allowed: set[int]) -> None:
        for task in (t for pid in pids for t in Path(f"/proc/{pid}/task").glob("*")):
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(task.name), allowed)

    pin({max(cores)})
    try:
        yield
    finally:
        pin(cores)


def live(
    spark: Any, ports: dict[str, str], folder: Path, ours: Connection, *, rounds: int, where: str
) -> list[list[str]]:
    """Two rows for each protocol: beside an archive, and beside a process that only counts.
    `where`: the archive runs."""
    addresses = (ports["nats"], ports["nsq"])
    found: list[tuple[tuple[float, float], tuple[float, float]]] = []
    beside_counting: list[tuple[float, float]] = []
    for _ in range(rounds):
        ours.send(addresses)
        idle = ours.recv()
        with counting():
            ours.send(addresses)
            beside_counting.append(ours.recv())
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            while not done.is_set():
                archive(spark, ports["bulk"], folder / "out")
                shutil.rmtree(folder / "out")

        worker = threading.Thread(target=work)
        worker.start()
        ours.send(addresses)
        busy = ours.recv()
        done.set()
        worker.join()
        found.append((idle, busy))
    rows = []
    for at, name in enumerate(("NATS request", f"NSQ at {NSQ_RATE:,.0f}/s")):
        before, after = (statistics.median(pair[i][at] for pair in found) for i in (0, 1))
        ratios = [busy[at] / idle[at] for idle, busy in found]
        ratio = statistics.median(ratios)
        label = f"p99 of {name} while an archive runs{where}, {before:,.0f} to {after:,.0f} us"
        met = report.verdict(ratio, GOAL_P99, least=False)
        rows.append([label, f"{ratio:.2f} x", report.spread(ratios), f"<= {GOAL_P99}", met])
        ratios = [
            counted[at] / idle[at]
            for counted, (idle, _) in zip(beside_counting, found, strict=True)
        ]
        label = f"p99 of {name} while a process of nice 19 only counts"
        rows.append([label, f"{statistics.median(ratios):.2f} x", report.spread(ratios), "", ""])
    return rows


@contextmanager
def counting() -> Iterator[None]:
    """A process that keeps a core busy and does nothing else: what sharing the machine costs."""
    child = multiprocessing.get_context("spawn").Process(target=count, daemon=True)
    child.start()
    try:
        yield
    finally:
        child.kill()
        child.join()


def count() -> None:
    while True:
        pass


def scale(spark: Any, root: Path, millions: list[int], size: int) -> list[list[str]]:
    """A row for each number of records."""
    rows = []
    for million in millions:
        folder = Path(tempfile.mkdtemp(dir=root))
        with broker(folder, million * 1_000_000, size) as (pid, ports):
            before, cpu = rss_mib(pid), processor_seconds(pid)
            most, done = [before], threading.Event()

            def watch(pid: int = pid, most: list[float] = most, done: Any = done) -> None:
                while not done.wait(0.2):
                    most.append(rss_mib(pid))

            watcher = threading.Thread(target=watch)
            watcher.start()
            began = time.perf_counter()
            records = archive(spark, ports["bulk"], folder / "out")
            us = (time.perf_counter() - began) / records * 1e6
            done.set()
            watcher.join()
            cpu_us = (processor_seconds(pid) - cpu) / records * 1e6
            label = f"{million} M records: RSS of the broker {before:.0f} to {max(most):.0f} MiB"
            rows.append([label, f"{us:.2f} us per record", f"broker {cpu_us:.2f} us CPU", "", ""])
            print(rows[-1], file=sys.stderr)
        shutil.rmtree(folder)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--scale", default="", help="millions of records, with commas between")
    parser.add_argument("--nice", type=int, default=19, help="of Spark and of the conversion")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument(
        "--one-core", action="store_true", help="hold Spark to one core during --live"
    )
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--write", action="store_true", help="write the page in results/")
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    loader = multiprocessing.Process(target=load, args=(theirs,), daemon=True)
    loader.start()
    with tempfile.TemporaryDirectory(dir=options.data_root) as place:
        folder = Path(place)
        with broker(folder, options.records, options.size) as (pid, ports):
            os.nice(options.nice)
            with session(Job({}, {}, options.master), "bench", light=True) as spark:
                rows = compare(
                    spark, ports["bulk"], folder,
                    records=options.records, rounds=options.rounds,
                    name=f"archive, {options.master}",
                )  # fmt: skip
                if options.live:
                    spared = {pid, cast("int", loader.pid)}
                    with pinned_to_last_core(spared) if options.one_core else nullcontext():
                        where = " on one core" if options.one_core else ""
                        rows += live(spark, ports, folder, ours, rounds=options.rounds, where=where)
                if options.scale:
                    millions = [int(number) for number in options.scale.split(",")]
                    rows += scale(spark, folder, millions, options.size)
    ours.send(None)
    loader.join()
    method = (
        f"{options.records:,} records of {options.size} B in {len(TOPICS)} topics, "
        f"{options.master}; {options.rounds} rounds, median."
    )
    head = ["row", "median", "spread", "goal", ""]
    report.show("archive", method, head, rows, write=options.write)


if __name__ == "__main__":
    main()
