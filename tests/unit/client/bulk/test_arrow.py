"""Record batches: their types, their nulls, their sizes."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.clients.frames import NOW_NS, frame, header_block, record

from broker.client.bulk.errors import Damaged

pa = pytest.importorskip("pyarrow")
from broker.client.bulk.arrow import DEFAULT_COLUMNS, SCHEMA, to_batches  # noqa: E402

NOW = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NOW_NS // 1000)


def test_all_columns() -> None:
    block = header_block((b"K", b"k"), (b"Nats-Msg-Id", b"m"))
    records = [
        record(5, b"five", subject=b"a.b", headers=block, not_before_ns=NOW_NS),
        record(6, b"\xff"),
    ]
    (batch,) = to_batches(
        frame(records, first=5),
        SCHEMA.names,
        topic="t\u00e9",
        partition=3,
        broker="b",
        key_header="K",
    )
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    assert batch.to_pylist() == [
        {
            "key": b"k",
            "value": b"five",
            "topic": "t\u00e9",
            "partition": 3,
            "offset": 5,
            "timestamp": NOW,
            "timestampType": 1,
            "subject": "a.b",
            "headers": [{"key": "K", "value": b"k"}, {"key": "Nats-Msg-Id", "value": b"m"}],
            "broker": "b",
            "messageId": "m",
            "notBefore": NOW,
        },
        {
            "key": None,
            "value": b"\xff",
            "topic": "t\u00e9",
            "partition": 3,
            "offset": 6,
            "timestamp": NOW,
            "timestampType": 1,
            "subject": "t\u00e9",
            "headers": None,
            "broker": "b",
            "messageId": None,
            "notBefore": None,
        },
    ]


@pytest.mark.parametrize("columns", [None, ["offset"], ["topic", "key"], ["headers", "value"], []])
def test_columns_in_the_order_asked_for(columns: list[str] | None) -> None:
    (batch,) = to_batches(frame([record(1), record(2)]), columns, topic="t")
    batch.validate(full=True)
    assert batch.schema.names == list(DEFAULT_COLUMNS if columns is None else columns)
    assert batch.num_rows == 2


def test_an_unknown_column() -> None:
    with pytest.raises(ValueError, match="unknown column offzet; known are key, "):
        list(to_batches(frame([]), ["offzet"], topic="t"))


def test_sizes() -> None:
    data = frame([record(i, bytes(1000)) for i in range(1, 101)])
    by_rows = list(to_batches(data, topic="t", max_rows=30))
    assert [batch.num_rows for batch in by_rows] == [30, 30, 30, 10]
    by_bytes = list(to_batches(data, ["value"], topic="t", max_bytes=10_450))
    assert {batch.num_rows for batch in by_bytes} == {10}
    assert pa.Table.from_batches(by_rows).column("offset").to_pylist() == list(range(1, 101))
    (whole,) = to_batches(data, topic="t" * 300, max_rows=1 << 20, max_bytes=1 << 40)
    whole.validate(full=True)
    assert whole.num_rows == 100


def test_many_rows_of_constants() -> None:
    data = frame([record(i) for i in range(1, 15_002)])
    (batch,) = to_batches(data, topic="t", max_rows=20_000)
    batch.validate(full=True)
    assert batch.num_rows == 15_001
    assert [b.num_rows for b in to_batches(data, topic="t")] == [10_000, 5_001]


def test_an_empty_frame_has_no_batches() -> None:
    assert list(to_batches(frame([]), topic="t")) == []


def test_gaps() -> None:
    data = frame([record(1), record(4)], gaps=[(2, 4, 2)])
    with pytest.raises(Damaged, match="topic t: records cannot be read: 2-3 missing") as raised:
        list(to_batches(data, topic="t"))
    assert raised.value.gaps == ((2, 4, 2),)
    (batch,) = to_batches(data, ["offset"], topic="t", skip_gaps=True)
    assert batch.column(0).to_pylist() == [1, 4]


def test_without_numpy_and_pandas_and_without_the_broker() -> None:
    """As in a Spark executor that has the client, PyArrow and nothing else."""
    script = (
        "import sys\n"
        "for name in ('numpy', 'pandas', 'aiohttp', 'uvloop', 'orjson', 'msgspec', 'click'):\n"
        "    sys.modules[name] = None\n"
        "import broker.client.bulk as bulk\n"
        "data = bytes.fromhex(sys.stdin.read())\n"
        "(batch,) = bulk.to_batches(data, bulk.SCHEMA.names, topic='t', key_header='K')\n"
        "batch.validate(full=True)\n"
        "print(batch.num_rows)\n"
        "mine = {m for m in sys.modules if m.startswith('broker.') and 'client' not in m}\n"
        "print(mine - {'broker._compiled'})\n"
    )
    data = frame([record(1, headers=header_block((b"K", b"v")))])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[4],
        input=data.hex(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout == "1\nset()\n"


def test_the_plain_decoder_steps_in_and_says_so() -> None:
    script = (
        "import sys, warnings\n"
        "sys.modules['broker.client.bulk.decode'] = None\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    from broker.client.bulk import to_batches\n"
        "(batch,) = to_batches(bytes.fromhex(sys.stdin.read()), ['offset'], topic='t')\n"
        "said = [str(w.message) for w in said if 'decoder' in str(w.message)]\n"
        "print(batch.num_rows, [text[:37] for text in said])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[4],
        input=frame([record(1)]).hex(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout == "1 ['the compiled decoder cannot be loaded']\n"


def test_large_bodies_and_many_headers() -> None:
    block = header_block(*((b"H%d" % i, b"v" * i) for i in range(200)))
    bodies = [b"\xff" * (1 << 20), b"", b"x" * (5 << 20), b"y"]
    records = [record(i, body, headers=block) for i, body in enumerate(bodies, 1)]
    batches = list(to_batches(frame(records), ["value", "headers"], topic="t"))
    for batch in batches:
        batch.validate(full=True)
    assert [batch.num_rows for batch in batches] == [2, 1, 1]  # 4 MiB, or one that is larger
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == bodies
    assert {len(row["headers"]) for row in rows} == {200}
    assert rows[3]["headers"][199] == {"key": "H199", "value": b"v" * 199}
