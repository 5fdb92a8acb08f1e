"""The archive job on local Spark: how fast, at whose cost, and whether the cost is linear.

    python benchmarks/spark_archive.py [--records 2000000] [--rounds 3] [--live] [--scale 1,4,16]

One broker, four topics; all is read through its bulk door, on this machine. Beside the archive one
process with PyArrow does the same conversion: fetch, decode (compiled), write zstd Parquet. Rounds
alternate and ratios are taken within a round, with the JVM warm. --live measures NATS requests and
an NSQ topic at a steady rate without and with an archive running; --scale archives so many
million records, each of them in a new broker, and tells time, CPU and memory. Spark and the
conversion run at nice 19, as on a machine where a broker is at work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bulk_door import fill, processor_seconds, start

from broker.client.bulk.connection import Connection as Door
from broker.client.bulk.reading import iter_arrow
from broker.client.scenarios import NatsRequestPlan, NsqFlowPlan, run_nats_request, run_nsq_flow
from broker.spark.jobs.archive import Archiving, build
from broker.spark.jobs.archive_write import COLUMNS, HourFiles
from broker.spark.jobs.command import Job, session
from broker.spark.manifest import Manifest, Range

TOPICS = ("bench0", "bench1", "bench2", "bench3")
LOAD_SECONDS = 5.0
NSQ_RATE = 2000.0
GOAL_SPEED = 1.5
GOAL_P99 = 1.5


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def load(told: Connection) -> None:
    """A process of its own that loads the broker when it is told to: NATS, then NSQ."""
    while (ports := told.recv()) is not None:
        (nats, nsq) = ((host, int(port)) for host, port in (p.split(":") for p in ports))
        requests = run_nats_request(NatsRequestPlan(address=nats, seconds=LOAD_SECONDS))
        flow = run_nsq_flow(
            NsqFlowPlan(address=nsq, seconds=LOAD_SECONDS, rate=NSQ_RATE, batch=1, topic="live")
        )
        assert requests.latency_us is not None
        assert flow.latency_us is not None
        told.send((requests.latency_us["p99"], flow.latency_us["p99"]))


@contextmanager
def broker(folder: Path, records: int, size: int) -> Iterator[tuple[int, dict[str, str]]]:
    """With that many records in its topics."""
    child, ports = start(folder)
    try:
        for topic in TOPICS:
            fill(ports["nsq_http"], topic, records // len(TOPICS), size)
        with Door(ports["bulk"]) as door:  # what is not on the disk yet is not archived
            while any(t.next - t.first < records // len(TOPICS) for t in door.topics().topics):
                time.sleep(0.1)
        yield child.pid, ports
    finally:
        child.terminate()
        child.wait()


def convert(door: str, folder: Path) -> float:
    """One process, one file a topic; seconds."""
    folder.mkdir()
    began = time.perf_counter()
    names = [name for name in COLUMNS if name != "key"]
    for topic in TOPICS:
        with HourFiles(folder, Range(topic, 0, "0", 0, 0), names) as hours:
            for batch in iter_arrow(
                door, topic, columns=names, max_rows=131_072, max_bytes=32 << 20
            ):
                hours.add(batch)
            hours.finish()
    return time.perf_counter() - began


def archive(spark: Any, door: str, folder: Path) -> tuple[float, int]:
    """Seconds, records."""
    job = Job({"servers": door}, {"subscribe": ",".join(TOPICS)})
    archiver = build(spark, job, Archiving(str(folder), hold=False), lambda _line: None)
    began = time.perf_counter()
    archiver.run()
    seconds = time.perf_counter() - began
    assert archiver.records == sum(one.records for one in Manifest(folder).load().select())
    return seconds, archiver.records


def compare(spark: Any, ports: dict[str, str], folder: Path, rounds: int) -> None:
    ratios = []
    for number in range(rounds + 1):
        plain = convert(ports["bulk"], folder / "plain")
        seconds, records = archive(spark, ports["bulk"], folder / "lake")
        for name in ("plain", "lake"):
            shutil.rmtree(folder / name)
        if number == 0:
            continue  # the JVM and the workers are warm now
        ratios.append(plain / seconds)
        print(
            f"PyArrow alone {records / plain:,.0f}/s, archive {records / seconds:,.0f}/s, "
            f"ratio {ratios[-1]:.2f}"
        )
    met = "met" if statistics.median(ratios) >= GOAL_SPEED else "MISSED"
    print(
        f"archive beside PyArrow alone: {statistics.median(ratios):.2f} (goal {GOAL_SPEED}: {met})"
    )


def live(spark: Any, ports: dict[str, str], folder: Path, ours: Connection, rounds: int) -> None:
    addresses = (ports["nats"], ports["nsq"])
    ratios: list[tuple[float, float]] = []
    for _ in range(rounds):
        ours.send(addresses)
        idle = ours.recv()
        done = threading.Event()

        def work(done: threading.Event = done) -> None:
            while not done.is_set():
                archive(spark, ports["bulk"], folder / "lake")
                shutil.rmtree(folder / "lake")

        worker = threading.Thread(target=work)
        worker.start()
        ours.send(addresses)
        busy = ours.recv()
        done.set()
        worker.join()
        ratios.append((busy[0] / idle[0], busy[1] / idle[1]))
        print(
            f"p99 NATS {idle[0]:,.0f} -> {busy[0]:,.0f} us, NSQ {idle[1]:,.0f} -> {busy[1]:,.0f} us"
        )
    for name, at in (("NATS", 0), ("NSQ", 1)):
        ratio = statistics.median(pair[at] for pair in ratios)
        met = "met" if ratio <= GOAL_P99 else "MISSED"
        print(f"p99 of {name} while an archive runs: {ratio:.2f} (goal {GOAL_P99}: {met})")


def scale(spark: Any, root: Path, millions: list[int], size: int) -> None:
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
            seconds, records = archive(spark, ports["bulk"], folder / "lake")
            done.set()
            watcher.join()
            cpu = processor_seconds(pid) - cpu
            us, cpu_us = seconds / records * 1e6, cpu / records * 1e6
            print(
                f"{million} M: {seconds:.1f} s, a record {us:.2f} us, broker {cpu_us:.2f} us"
                f" CPU, RSS {before:.0f}-{max(most):.0f} MiB"
            )
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--scale", default="", help="millions of records, with commas between")
    parser.add_argument("--nice", type=int, default=19, help="of Spark and of the conversion")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--data-root", default=None)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    loader = multiprocessing.Process(target=load, args=(theirs,), daemon=True)
    loader.start()
    with tempfile.TemporaryDirectory(dir=options.data_root) as name:
        folder = Path(name)
        with broker(folder, options.records, options.size) as (_, ports):
            os.nice(options.nice)
            with session(Job({}, {}, options.master), "bench", light=True) as spark:
                compare(spark, ports, folder, options.rounds)
                if options.live:
                    live(spark, ports, folder, ours, options.rounds)
                if options.scale:
                    scale(spark, folder, [int(n) for n in options.scale.split(",")], options.size)
    ours.send(None)
    loader.join()


if __name__ == "__main__":
    main()
