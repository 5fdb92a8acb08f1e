"""Frames to Arrow and back on one core: rows a second, and what a PyArrow-only decoder needs.

    python benchmarks/bulk_decode.py [--records 200000] [--size 256] [--write]

No network: frames of 4 MiB in the format of the bulk API are decoded one after another, so that
they come from memory and not from the processor's caches. Each line is the median of --rounds.
The PyArrow line is the fastest way without compiled code of Twinwire: fixed headers by NumPy,
bodies as views of the frame, copied by a cast; it verifies no checksums. Times are CPU times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import report

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.clients.frames import frame, header_block, record  # noqa: E402

from broker.client.bulk import limits  # noqa: E402
from broker.client.bulk.arrow import DEFAULT_COLUMNS, SCHEMA, to_batches  # noqa: E402
from broker.client.bulk.encode import blocks  # noqa: E402

FULL = "all columns, two headers"
DEFAULT = f"decode, {len(DEFAULT_COLUMNS)} default columns"
GOAL = 2.0


def make_frames(records: int, body: bytes, headers: bytes) -> list[bytes]:
    """Frames as the bulk API sends them."""
    size = 48 + len(body) + len(headers)
    per_frame = max(1, limits.FETCH_BYTES // size)
    made = []
    for first in range(1, records + 1, per_frame):
        seqs = range(first, min(first + per_frame, records + 1))
        raw = [record(seq, body, subject=b"orders.eu", headers=headers) for seq in seqs]
        made.append(frame(raw, first=first))
    return made


def decode(frames: list[bytes], columns: Any) -> int:
    """Decode all frames; the number of rows."""
    rows = 0
    for data in frames:
        for batch in to_batches(data, columns, topic="orders", key_header="Key"):
            rows += batch.num_rows
    return rows


def decode_by_pyarrow(frames: list[bytes]) -> int:
    """Bodies and sequence numbers with NumPy and PyArrow only."""
    import numpy as np

    rows = 0
    for data in frames:
        count, gaps = np.frombuffer(data, "<u4", 2, 8)
        tables = 64 + 24 * int(gaps)
        offsets = np.frombuffer(data, "<u4", int(count) + 1, tables)
        start = len(data) - int(offsets[-1])
        raw = np.frombuffer(data, np.uint8)
        at = (offsets[:-1] + start).astype(np.int64)
        heads = raw[at[:, None] + np.arange(40)].view("<u4")
        lengths = heads[:, 0] - 40 - (heads[:, 8] & 0xFFFF)
        views = np.zeros((int(count), 4), "<i4")
        views[:, 0] = lengths
        views[:, 3] = at + 40 + (heads[:, 8] & 0xFFFF)
        buffers = [None, pa.py_buffer(views), pa.py_buffer(data)]
        view = pa.Array.from_buffers(pa.binary_view(), int(count), buffers)
        seqs = pa.array(np.ascontiguousarray(heads[:, 2:4]).view("<i8").reshape(-1))
        rows += len(pa.record_batch([seqs, view.cast(pa.binary())], ["offset", "value"]))
    return rows


def encode(batches: list[pa.RecordBatch], **more: Any) -> int:
    """Encode all batches; the number of rows."""
    for batch in batches:
        for _topic, _block in blocks(batch, key_header="Key", **more):
            pass
    return sum(batch.num_rows for batch in batches)


def rates(work: Callable[[], int], rounds: int) -> list[float]:
    """Million rows per second of CPU time, for each round."""
    found = []
    for _ in range(rounds + 1):
        began = time.process_time()
        rows = work()
        found.append(rows / (time.process_time() - began) / 1e6)
    return found[1:]  # the first one warms up


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--records", type=int, default=200_000)
    arguments.add_argument("--size", type=int, default=256)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--write", action="store_true", help="write the page in results/")
    given = arguments.parse_args()
    body = os.urandom(given.size)
    headers = header_block((b"Key", b"customer-17"), (b"Nats-Msg-Id", b"0123456789abcdef"))
    plain = make_frames(given.records, body, b"")
    full = make_frames(given.records, body, headers)
    wide = [
        b for data in full for b in to_batches(data, SCHEMA.names, topic="orders", key_header="Key")
    ]
    narrow = [batch.select(["value", "topic"]) for batch in wide]
    lines: list[tuple[str, Callable[[], int]]] = [
        (DEFAULT, lambda: decode(plain, None)),
        ("decode, value", lambda: decode(plain, ["value"])),
        ("decode, offset and timestamp", lambda: decode(plain, ["offset", "timestamp"])),
        (f"decode, {FULL}", lambda: decode(full, SCHEMA.names)),
        ("encode, value and topic", lambda: encode(narrow)),
        (f"encode, {FULL}", lambda: encode(wide)),
    ]
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("NumPy is not installed: no comparison with PyArrow alone")
    else:
        lines.insert(2, ("PyArrow and NumPy, value and offset", lambda: decode_by_pyarrow(plain)))
    rows = []
    for name, work in lines:
        found = rates(work, given.rounds)
        rate = statistics.median(found)
        goal = [f">= {GOAL}", report.verdict(rate, GOAL)] if name == DEFAULT else ["", ""]
        rows.append([name, f"{rate:.2f}", report.spread(found), *goal])
    method = (
        f"{given.records:,} records of {given.size} B in {len(plain)} frames, in memory; one core, "
        f"{given.rounds} rounds, median."
    )
    head = ["row", "M rows/s", "spread", "goal", ""]
    report.show("bulk decode", method, head, rows, write=given.write)


if __name__ == "__main__":
    main()
