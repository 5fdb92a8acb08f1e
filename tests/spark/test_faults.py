"""Brokers that die, logs that were trimmed or damaged: reported, or read around, never ignored.

The source is driven by hand here; what Spark itself does with it is in the other files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import Broker, Server
from support.clients.http import request
from support.live.spark import SYNCED, damage, fill, numbered, trim

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from support.spark.data_source import COLUMNS, Query, Row, read_batch

from broker.spark.errors import BrokerDownError, DataLossError, OptionError
from broker.spark.source.batch import BatchReader
from broker.spark.source.options import read_settings

SMALL = {
    "storage": {
        "sync": "none",
        "segment_size": "64KiB",
        "topic": [{"pattern": "trimmed", "max_bytes": 200_000}],
    }
}
StartServer = Callable[[Any], Server]


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    started: list[Server] = []

    def start(config: Any) -> Server:
        started.append(Broker(tmp_path_factory.mktemp("faulty"), config).start())
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="module")
def small(start_server: StartServer) -> Server:
    """A broker with small segments: files are dropped and damaged here."""
    return start_server(SMALL)


def offsets(rows: list[Row]) -> list[int]:
    return sorted(row["offset"] for row in rows)


def values(rows: list[Row]) -> list[bytes]:
    return sorted(row["value"] for row in rows)


def test_records_that_were_removed(small: Server) -> None:
    options = {"servers": small.bulk, "subscribe": "trimmed", "hold": "false"}
    fill(small, "trimmed", numbered(10))
    query = Query(**options)
    assert offsets(query.batch()) == list(range(1, 11))
    trim(small)
    with pytest.raises(DataLossError, match=r"records 11 to [0-9]+ were removed before"):
        query.batch()
    query.start(failOnDataLoss="false")
    query.batch()
    kept = offsets(query.rows)[10:]
    assert kept == list(range(kept[0], 611))
    assert 11 < kept[0] < 600

    old = {**options, "startingOffsets": '{"trimmed": {"0": 5}}'}
    with pytest.raises(DataLossError, match=r"records 5 to [0-9]+ were removed before"):
        read_batch(**old)
    assert offsets(read_batch(failOnDataLoss="false", **old)) == kept


def test_records_that_are_removed_while_they_are_read(small: Server) -> None:
    """Planned when they were there, gone when the task asks for them."""
    fill(small, "trimmed", numbered(5))
    lax = {"servers": str(small.bulk), "subscribe": "trimmed", "hold": "false"}
    strict = BatchReader(read_settings(lax, stream=False), COLUMNS)
    lax |= {"failOnDataLoss": "false", "gapRows": "true"}
    patient = BatchReader(read_settings(lax, stream=False), COLUMNS)
    (range_,) = patient.partitions()
    trim(small)
    with pytest.raises(DataLossError, match="were removed before"):
        list(strict.read(range_))
    rows = [row for batch in patient.read(range_) for row in batch.to_pylist()]
    planned, gap = range_.ranges[0].range, rows[0]
    assert (gap["value"], gap["offset"]) == (None, planned.start)
    headers = {pair["key"]: pair["value"] for pair in gap["headers"]}
    assert headers["Twinwire-Gap-Reason"] == b"missing"
    assert offsets(rows[1:]) == list(range(int(headers["Twinwire-Gap-Next"]), planned.end))


def test_a_damaged_segment(small: Server) -> None:
    fill(small, "damaged", [b"body-%03d." % n for n in range(100)])
    damage(small, "damaged", b"body-041.")
    options = {"servers": small.bulk, "subscribe": "damaged"}
    with pytest.raises(DataLossError, match="records 42 to 42 are damaged"):
        read_batch(**options)
    query = Query(**options)
    with pytest.raises(DataLossError, match="records 42 to 42 are damaged"):
        query.batch()
    lax = {**options, "failOnDataLoss": "false"}
    whole = [seq for seq in range(1, 101) if seq != 42]
    assert offsets(read_batch(**lax)) == whole
    query.start(failOnDataLoss="false")
    assert offsets(query.batch()) == whole
    rows = read_batch(gapRows="true", **lax)
    (gap,) = (row for row in rows if row["value"] is None)
    assert len(rows) == 100
    assert (gap["topic"], gap["offset"], gap["partition"], gap["timestamp"]) == (
        "damaged", 42, 0, None,
    )  # fmt: skip
    assert [(pair["key"], pair["value"]) for pair in gap["headers"]] == [
        ("Twinwire-Gap-Next", b"43"),
        ("Twinwire-Gap-Reason", b"damaged"),
    ]


def test_a_broker_that_is_killed_in_the_middle_of_a_task(small: Server) -> None:
    fill(small, "killed", [b"%d" % n + bytes(200) for n in range(3000)])
    options = {
        "servers": str(small.bulk),
        "subscribe": "killed",
        "fetchBytes": "64k",
        "fetchRetries": "30",
    }
    reader = BatchReader(read_settings(options, stream=False), COLUMNS)
    (range_,) = reader.partitions()
    found: list[int] = []
    back: threading.Thread | None = None
    for batch in reader.read(range_):
        found += batch.column("offset").to_pylist()
        if back is None:
            small.kill()
            back = threading.Thread(target=small.start)
            back.start()
    assert back is not None
    back.join()
    assert found == list(range(1, 3001))


def test_a_topic_that_was_made_anew_or_is_gone(small: Server) -> None:
    fill(small, "anew", numbered(5))
    query = Query(servers=small.bulk, subscribe="anew")
    query.batch()
    assert request(small.nsq_http, "POST", "/topic/delete", topic="anew").status == 200
    with pytest.raises(DataLossError, match="was deleted; it was read up to 6"):
        query.batch()
    fill(small, "anew", [b"new"] * 9)
    with pytest.raises(DataLossError, match="was deleted and recreated"):
        query.batch()
    query.start(failOnDataLoss="false")
    assert values(query.batch()) == [b"new"] * 9
    assert query.batch() == []


def test_a_batch_that_was_planned_before_a_crash(small: Server) -> None:
    """It is read as it was planned, though there is more by now."""
    fill(small, "planned", numbered(20))
    query = Query(servers=small.bulk, subscribe="planned", maxOffsetsPerTrigger=8)
    query.offset = query.reader.initialOffset()
    query.pending = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    fill(small, "planned", numbered(20, 20))
    query.start(maxOffsetsPerTrigger=30)
    assert offsets(query.batch()) == list(range(1, 9))
    assert offsets(query.batch()) == list(range(9, 39))


def test_brokers_that_are_down(small: Server, start_server: StartServer) -> None:
    other = start_server(SYNCED)
    fill(small, "two", numbered(5))
    fill(other, "two", numbered(5, 5))
    options = {"servers": f"{small.bulk},{other.bulk}", "subscribe": "two", "fetchRetries": 1}
    with pytest.raises(OptionError, match="are both configured as partition 0"):
        read_batch(**options)
    other.stop()
    assert isinstance(other, Broker)
    other.config_text += "[bulk]\npartition = 1\n"
    other.start()
    query = Query(**options)
    rows = query.batch()
    assert values(rows) == sorted(numbered(10))
    assert {(row["partition"], row["value"] in numbered(5)) for row in rows} == {
        (0, True),
        (1, False),
    }
    fill(small, "two", numbered(5, 10))
    fill(other, "two", numbered(5, 15))
    other.kill()
    with pytest.raises(BrokerDownError, match=f"brokers not reached: {other.bulk}"):
        query.batch()
    query.start(failOnDataLoss="false")
    assert values(query.batch()) == sorted(numbered(5, 10))
    other.start()
    assert values(query.batch()) == sorted(numbered(5, 15))
    with pytest.raises(BrokerDownError):
        read_batch(servers="127.0.0.1:1", subscribe="two", failOnDataLoss="false", fetchRetries=0)


def gaps_of(rows: list[Row]) -> list[tuple[int, int, bytes]]:
    """(first, next, reason) of the rows that stand for what is lost."""
    found = []
    for row in rows:
        if row["value"] is None:
            headers = {pair["key"]: pair["value"] for pair in row["headers"]}
            last = int(headers["Twinwire-Gap-Next"])
            found.append((row["offset"], last, headers["Twinwire-Gap-Reason"]))
    return found


def test_what_was_removed_before_it_was_planned_is_a_row(small: Server) -> None:
    """Of a stream that comes late, and of a query that asks for what is no more."""
    fill(small, "trimmed", numbered(10))
    options: dict[str, Any] = {"servers": small.bulk, "subscribe": "trimmed", "hold": "false"}
    lax = {**options, "failOnDataLoss": "false", "gapRows": "true"}
    query = Query(**options)
    query.batch()
    behind = query.offset["trimmed"]["0"]["seq"]
    trim(small)
    query.start(**lax)
    rows = query.batch()
    kept = offsets([row for row in rows if row["value"] is not None])
    assert kept == list(range(kept[0], behind + 600))
    assert gaps_of(rows) == [(behind, kept[0], b"missing")]

    old = {**lax, "startingOffsets": f'{{"trimmed": {{"0": {behind - 3}}}}}'}
    assert gaps_of(read_batch(**old)) == [(behind - 3, kept[0], b"missing")]
    ended = {**old, "endingOffsets": f'{{"trimmed": {{"0": {behind}}}}}'}
    assert gaps_of(read_batch(**ended)) == [(behind - 3, behind, b"missing")]
    assert gaps_of(read_batch(**lax)) == []
