"""Reading and writing as Spark's tasks and driver do it, with what goes wrong in between.

The data source is driven by hand here; what Spark itself does with it is in the other files.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Broker, Server
from support.live.spark import SYNCED, fill, make_topic, numbered

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.types import StructType
from support.spark.data_source import Query, Row, batch_writer, read_batch, stream_writer, write

from broker.client.bulk.connection import Connection
from broker.client.bulk.errors import Unauthorized, Unreachable
from broker.spark.errors import DataLossError, OptionError, UncommittedError

ROWS = StructType().add("topic", "string").add("value", "binary")
QUERY = "5d0a6c1e-7d57-4a35-8e65-0c5d0a1b2c3d"


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Another broker, with a number of its own."""
    server = Broker(tmp_path_factory.mktemp("second"), {**SYNCED, "bulk": {"partition": 1}})
    yield server.start()
    server.close()


def rows(topic: str, bodies: list[bytes]) -> list[Row]:
    return [{"topic": topic, "value": body} for body in bodies]


def bodies(server: Server, topic: str) -> list[bytes]:
    found = read_batch(servers=server.bulk, subscribe=topic)
    assert sorted(row["offset"] for row in found) == list(range(1, len(found) + 1))
    return [row["value"] for row in found]


# --- writing


def test_only_the_attempts_that_count(lake: Server, topic: str) -> None:
    """A task fails when all it has is uploaded, and runs again with its rows in another order."""
    make_topic(lake, topic)
    writer = stream_writer(ROWS, servers=lake.bulk)
    halves = [numbered(300), numbered(300, 300)]
    random.Random(1).shuffle(halves[1])
    lost = write(writer, rows(topic, numbered(300, 150)), 1, (QUERY, 0))
    messages = [write(writer, rows(topic, half), n, (QUERY, 0)) for n, half in enumerate(halves)]
    assert bodies(lake, topic) == []
    stream_writer(ROWS, servers=lake.bulk).commit(messages[::-1], 0)
    assert bodies(lake, topic) == halves[0] + halves[1]  # in the order of the tasks
    assert lost is not None


def test_a_batch_that_runs_again(lake: Server, topic: str) -> None:
    """Killed after the commit: a new driver has the same batch, in other tasks."""
    writer = stream_writer(ROWS, servers=lake.bulk)

    def run(batch: int, parts: list[list[bytes]]) -> None:
        done = [write(writer, rows(topic, p), n, (QUERY, batch)) for n, p in enumerate(parts)]
        writer.commit(done, batch)

    run(0, [numbered(100)])
    run(0, [numbered(50, 50), numbered(50)])
    run(1, [numbered(50, 100)])
    run(1, [numbered(50, 100)])
    with pytest.raises(UncommittedError, match="the checkpoint is an old copy"):
        run(0, [numbered(100)])
    assert sorted(bodies(lake, topic)) == sorted(numbered(150))
    other = (QUERY.replace("5", "6"), 0)  # a query of its own, as with a new checkpoint
    writer.commit([write(writer, rows(topic, [b"x"]), 0, other)], 0)
    assert len(bodies(lake, topic)) == 151


def test_a_driver_that_is_gone_before_its_commit(lake: Server, topic: str) -> None:
    make_topic(lake, topic)
    writer = stream_writer(ROWS, servers=lake.bulk)
    write(writer, rows(topic, numbered(10)), 0, (QUERY, 7))
    again = write(writer, rows(topic, numbered(10)), 0, (QUERY, 7))
    writer.commit([again], 7)
    assert bodies(lake, topic) == numbered(10)


def test_nothing_is_published_when_a_task_is_missing(lake: Server, topic: str) -> None:
    make_topic(lake, topic)
    writer = batch_writer(ROWS, servers=lake.bulk)
    done = write(writer, rows(topic, numbered(10)))
    with pytest.raises(UncommittedError):
        writer.commit([done, None])
    writer.abort([done, None])
    with Connection(str(lake.bulk)) as bulk:
        assert str(done.attempt) not in json.dumps(bulk.committed(writer.transaction.writer))
    assert bodies(lake, topic) == []


def test_a_broker_that_is_killed_between_write_and_commit(second: Server, topic: str) -> None:
    make_topic(second, topic)
    writer = stream_writer(ROWS, servers=second.bulk, fetchRetries=20)
    done = write(writer, rows(topic, numbered(500)), 0, (QUERY, 0))
    second.kill()
    second.start()
    writer.commit([done], 0)
    second.kill()
    second.start()
    writer.commit([done], 0)
    assert bodies(second, topic) == numbered(500)


def test_many_topics(lake: Server, topic: str) -> None:
    writer = batch_writer(ROWS, servers=lake.bulk)
    all_ = [{"topic": f"{topic}-{n % 50}", "value": b"%d" % n} for n in range(500)]
    writer.commit([write(writer, all_[:250], 0), write(writer, all_[250:], 1)])
    for n in range(50):
        assert bodies(lake, f"{topic}-{n}") == [b"%d" % m for m in range(n, 500, 50)]


def test_more_than_one_block(lake: Server, topic: str) -> None:
    writer = batch_writer(ROWS, servers=lake.bulk)
    large = [b"%02d" % n + bytes(5 << 20) for n in range(6)]
    writer.commit([write(writer, rows(topic, large), at_once=1)])
    assert [body[:2] for body in bodies(lake, topic)] == [body[:2] for body in large]


def test_several_brokers(lake: Server, second: Server, topic: str) -> None:
    both = f"{lake.bulk},{second.bulk}"
    first = batch_writer(ROWS, servers=both)
    first.commit([write(first, rows(topic, numbered(5)))])
    assert bodies(lake, topic) == numbered(5)
    spread = batch_writer(ROWS, servers=both, routing="topic")
    all_ = [{"topic": f"{topic}-{n}", "value": b"%d" % n} for n in range(20)]
    spread.commit([write(spread, all_)])
    found = read_batch(servers=both, subscribePattern=f"{topic}-.*")
    assert sorted(row["value"] for row in found) == sorted(numbered(20))
    assert {row["partition"] for row in found} == {0, 1}


def test_one_of_several_brokers_is_down_at_the_commit(
    lake: Server, second: Server, topic: str
) -> None:
    """The other has its records then; the batch runs again and each has them once."""
    options = {"servers": f"{lake.bulk},{second.bulk}", "routing": "topic", "fetchRetries": 0}
    all_ = [{"topic": f"{topic}-{n}", "value": b"%d" % n} for n in range(20)]
    query = (str(uuid.uuid4()), 0)
    writer = stream_writer(ROWS, **options)
    done = write(writer, all_, 0, query)
    second.kill()
    with pytest.raises(Unreachable):
        writer.commit([done], 0)
    second.start()
    writer = stream_writer(ROWS, **options)
    writer.commit([write(writer, all_[::-1], 0, query)], 0)
    wanted = {"servers": options["servers"], "subscribePattern": f"{topic}-.*"}
    found = read_batch(**wanted)
    assert sorted(row["value"] for row in found) == sorted(numbered(20))
    assert {row["partition"] for row in found} == {0, 1}


@pytest.mark.parametrize(("delivery", "times"), [("dedupe", 1), ("append", 2)])
def test_published_at_once(lake: Server, topic: str, delivery: str, times: int) -> None:
    columns = StructType(ROWS.fields).add("messageId", "string")
    writer = batch_writer(columns, servers=lake.bulk, delivery=delivery)
    all_ = [{**row, "messageId": row["value"].decode()} for row in rows(topic, numbered(100))]
    done = [write(writer, all_), write(writer, all_)]
    writer.commit(done)
    assert sorted(bodies(lake, topic)) == sorted(numbered(100) * times)


# --- reading


def test_where_a_batch_begins_and_ends(lake: Server, topic: str) -> None:
    fill(lake, topic, numbered(10))

    def got(**options: object) -> list[bytes]:
        found = read_batch(servers=lake.bulk, subscribe=topic, **options)
        return [row["value"] for row in found]

    start, end = json.dumps({topic: {"0": 4}}), json.dumps({topic: {"0": 7}})
    assert got(startingOffsets=start, endingOffsets=end) == [b"3", b"4", b"5"]
    with pytest.raises(OptionError, match="which is not subscribed"):
        got(startingOffsets='{"other": {"0": 1}}')
    (last,) = read_batch(
        servers=lake.bulk, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 10}})
    )
    now_ms = int(last["timestamp"].timestamp() * 1000)
    assert got(startingTimestamp=now_ms - 60_000) == numbered(10)
    assert got(endingTimestamp=now_ms - 60_000) == []
    assert got(endingTimestamp=now_ms + 60_000) == numbered(10)
    with pytest.raises(OptionError, match="has no record at or after"):
        got(startingTimestamp=now_ms + 60_000)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert got(startingTimestamp=now_ms + 60_000, **latest) == []


def test_topics_that_are_empty_or_not_there(lake: Server, topic: str) -> None:
    with pytest.raises(DataLossError, match=f"topic '{topic}' is not on any of the brokers"):
        read_batch(servers=lake.bulk, subscribe=topic)
    assert read_batch(servers=lake.bulk, subscribe=topic, failOnDataLoss="false") == []
    query = Query(servers=lake.bulk, subscribe=topic)
    assert query.batch() == []
    make_topic(lake, topic)
    assert read_batch(servers=lake.bulk, subscribe=topic) == []
    query.batch()
    fill(lake, topic, numbered(3))
    assert [row["value"] for row in query.batch()] == numbered(3)


def test_topics_that_appear_later(lake: Server, topic: str) -> None:
    fill(lake, f"{topic}-a", numbered(5))
    query = Query(servers=lake.bulk, subscribePattern=f"{topic}-.", startingOffsets="latest")
    assert query.batch() == []
    fill(lake, f"{topic}-a", numbered(5, 5))
    fill(lake, f"{topic}-b", numbered(5, 10))
    assert sorted(row["value"] for row in query.batch()) == sorted(numbered(10, 5))


def test_what_brokers_know_of_a_query(lake: Server, topic: str) -> None:
    """The place of a stream and its lag; what follows it is held."""
    fill(lake, topic, numbered(10))
    name = f"reader-{topic}"
    query = Query(servers=lake.bulk, subscribe=topic, reader=name, maxOffsetsPerTrigger=6)

    def counts() -> tuple[int, int, int]:
        with Connection(str(lake.bulk)) as bulk:
            (known,) = bulk.readers(name)["readers"]
            held = bulk.topics([topic]).topics[0].held_from
            place = known["positions"][topic]
            assert known["hold"]
            return place["seq"], place["lag"], held

    query.offset = query.reader.initialOffset()
    assert counts() == (1, 10, 1)
    query.batch()
    assert counts() == (7, 4, 7)
    query.start()
    query.batch()
    assert counts() == (11, 0, 11)


def test_tokens_and_rights(tmp_path: Path, topic: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("full secret-1 read,write,hold\nreader secret-2 read\n")
    server = Broker(tmp_path / "guarded", {**SYNCED, "bulk": {"token_file": str(tokens)}}).start()
    try:
        fill(server, topic, numbered(3), token="secret-1")
        options = {"servers": server.bulk, "subscribe": topic}
        with pytest.raises(Unauthorized):
            read_batch(**options)
        assert len(read_batch(token="secret-2", **options)) == 3  # it goes on without a hold
        with pytest.raises(Unauthorized):
            read_batch(token="secret-2", reader="named", **options)
        assert len(read_batch(token="secret-1", reader="named", **options)) == 3
        writer = batch_writer(ROWS, servers=server.bulk, token="secret-2")
        with pytest.raises(Unauthorized):
            write(writer, rows(topic, [b"x"]))
    finally:
        server.close()
