"""The bulk client with a live broker: what was published comes back whatever happens."""

from __future__ import annotations

import http.client
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
import pytest
from click.testing import CliRunner
from support import Server
from support.engine import flip_bit

from broker.client.bulk import Connection, Damaged, Refused, Trimmed, Unauthorized, UnknownTopic
from broker.client.bulk.errors import DAMAGED

pytest.importorskip("pyarrow")
from broker.client.bulk import SCHEMA, iter_arrow, read_arrow

pytestmark = pytest.mark.only_ours
Start = Callable[..., Server]
# Visible as soon as they are answered.
CONFIG = {"storage": {"sync": "none"}}


def publish(server: Server, topic: str, bodies: list[bytes]) -> None:
    link = http.client.HTTPConnection(server.nsq_http.host, server.nsq_http.port)
    parts = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    path = f"/mpub?topic={topic}&binary=true"
    link.request("POST", path, struct.pack(">I", len(bodies)) + parts)
    answer = link.getresponse()
    assert (answer.status, answer.read()) == (200, b"OK")
    link.close()


def numbered(count: int, size: int = 200) -> list[bytes]:
    return [(b"%d:" % i).ljust(size, b"x") for i in range(1, count + 1)]


def bulk_of(server: Server) -> str:
    return str(server.bulk)


@pytest.mark.parametrize("compress", ["", "gzip", "zstd"])
def test_a_topic(start_broker: Start, uniq: str, compress: str) -> None:
    server = start_broker(CONFIG)
    bodies = numbered(5000)
    publish(server, uniq, bodies)
    table = read_arrow(bulk_of(server), uniq, compress=compress, fetch_bytes=1 << 17)
    table.validate(full=True)
    assert table.column("value").to_pylist() == bodies
    assert table.column("offset").to_pylist() == list(range(1, 5001))
    assert set(table.column("subject").to_pylist()) == {uniq}
    assert read_arrow(bulk_of(server), uniq, 4990, 4992).num_rows == 2


async def test_what_nats_clients_write(start_broker: Start, uniq: str) -> None:
    server = start_broker(CONFIG)
    publish(server, uniq, [b"first"])  # the topic is there
    client = await nats.connect(server.nats_url)
    headers = {"Nats-Msg-Id": "id-1", "Key": "k 1"}
    await client.publish(uniq, b"\xff\0", headers=headers)
    await client.publish(uniq, b"")
    await client.flush()
    await client.close()
    table = read_arrow(bulk_of(server), uniq, 2, columns=SCHEMA.names, key_header="Key")
    rows = table.to_pylist()
    assert [row["value"] for row in rows] == [b"\xff\0", b""]
    assert {header["key"]: header["value"] for header in rows[0]["headers"]} == {
        name: value.encode() for name, value in headers.items()
    }
    assert [(row["key"], row["messageId"]) for row in rows] == [(b"k 1", "id-1"), (None, None)]
    assert rows[1]["headers"] is None
    assert abs(rows[1]["timestamp"] - datetime.now(UTC)) < timedelta(minutes=1)
    listing = Connection(bulk_of(server)).topics()
    assert {(row["broker"], row["partition"]) for row in rows} == {
        (listing.broker, listing.partition)
    }


def test_places_by_time(start_broker: Start, uniq: str) -> None:
    server = start_broker(CONFIG)
    publish(server, uniq, [b"before"])
    (row,) = read_arrow(bulk_of(server), uniq).to_pylist()
    behind = row["timestamp"] + timedelta(microseconds=1)
    publish(server, uniq, [b"after"])
    after = read_arrow(bulk_of(server), uniq, behind)
    assert after.column("value").to_pylist() == [b"after"]
    assert read_arrow(bulk_of(server), uniq, None, behind).num_rows == 1
    later = datetime.now(UTC) + timedelta(days=1)
    assert read_arrow(bulk_of(server), uniq, later).num_rows == 0


def test_a_broker_that_is_killed_and_comes_back(start_broker: Start, uniq: str) -> None:
    server = start_broker(CONFIG)
    bodies = numbered(3000)
    publish(server, uniq, bodies)
    batches = iter_arrow(bulk_of(server), uniq, fetch_bytes=1 << 16)
    found = next(batches).column("value").to_pylist()
    server.kill()
    server.start()
    for batch in batches:
        found += batch.column("value").to_pylist()
    assert found == bodies


def test_rights(start_broker: Start, uniq: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"reader s3cret read {uniq}\nwriter other write\n")
    server = start_broker(CONFIG | {"bulk": {"token_file": str(tokens)}})
    publish(server, uniq, [b"x"])
    mine = tmp_path / "mine"
    mine.write_text("s3cret\n")
    assert read_arrow(bulk_of(server), uniq, token_file=str(mine)).num_rows == 1
    for token in ("", "wrong", "other"):
        with pytest.raises(Unauthorized):
            read_arrow(bulk_of(server), uniq, token=token)
    with Connection(bulk_of(server), token="s3cret") as bulk:
        with pytest.raises(Unauthorized):
            bulk.range("else", 1)
        with pytest.raises(UnknownTopic):
            read_arrow(bulk_of(server), "else", token="s3cret")


def test_a_damaged_record(start_broker: Start, uniq: str) -> None:
    server = start_broker(CONFIG)
    publish(server, uniq, numbered(100))
    server.stop()
    (path,) = (server.data / "logs" / uniq).glob("*.seg")
    flip_bit(path, 64 + 10 * 240 + 60)  # in the eleventh
    server.start()
    with pytest.raises(Damaged) as raised:
        read_arrow(bulk_of(server), uniq)
    assert [(gap.first, gap.next, gap.reason) for gap in raised.value.gaps] == [(11, 12, DAMAGED)]
    gaps: list[int] = []
    table = read_arrow(
        bulk_of(server), uniq, on_gap="skip", told_gap=lambda _b, _t, gap: gaps.append(gap.first)
    )
    assert (table.num_rows, gaps) == (99, [11])


def test_before_what_is_kept(start_broker: Start, uniq: str) -> None:
    server = start_broker(CONFIG)
    publish(server, uniq, [b"x"])
    with Connection(bulk_of(server)) as bulk, pytest.raises(Trimmed) as raised:
        bulk.range(uniq, 0)
    assert raised.value.first == 1


def test_export(start_broker: Start, uniq: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from broker.cli.tools.export import export

    server = start_broker(CONFIG)
    words = [uniq, "--bulk-address", bulk_of(server), "--out", str(tmp_path / "lake")]
    words += ["--file-records", "1000", "--quiet"]
    publish(server, uniq, numbered(2500))
    assert CliRunner().invoke(export, words).exit_code == 0
    publish(server, uniq, numbered(1000))
    server.restart()
    assert CliRunner().invoke(export, words).exit_code == 0
    files = sorted((tmp_path / "lake").glob("*.parquet"), key=lambda p: int(p.stem.split("-")[-1]))
    ends = [path.stem.split("-")[-1] for path in files]
    assert ends == ["1000", "2000", "2500", "3000", "3500"]
    found = [value for path in files for value in pq.read_table(path).column("value").to_pylist()]
    assert found == numbered(2500) + numbered(1000)


def test_batches_that_are_published_once(start_broker: Start, uniq: str) -> None:
    import pyarrow as pa

    from broker.client.bulk.encode import blocks

    server = start_broker(CONFIG)
    rows = pa.table({"value": numbered(3000), "key": [f"k{i}" for i in range(3000)]})
    with Connection(bulk_of(server)) as bulk:
        won: list[tuple[int, str | int, int]] = []
        for part, attempt in ((0, "a"), (1, "b"), (1, "c")):
            offset = 0
            batch = rows.slice(part * 1500, 1500).combine_chunks().to_batches()[0]
            for topic, block in blocks(batch, topic=uniq, key_header="Key", max_bytes=100_000):
                assert topic == uniq
                offset = bulk.stage("writer", 7, topic, part, attempt, block, offset)
            won.append((part, attempt, offset))
        with pytest.raises(Refused) as raised:
            bulk.commit("writer", 7, {uniq: [(0, "a", 1)]})
        assert "missing" in raised.value.answer
        done = bulk.commit("writer", 7, {uniq: [won[0], won[2]]})[uniq]
        assert (done.records, done.first, done.last, done.already) == (3000, 1, 3000, False)
        server.kill()
        server.start()
        assert bulk.commit("writer", 7, {uniq: [won[0], won[2]]})[uniq].already
    table = read_arrow(bulk_of(server), uniq, key_header="Key")
    assert table.column("value").to_pylist() == numbered(3000)
    assert table.column("key").to_pylist() == [b"k%d" % i for i in range(3000)]


def test_append(start_broker: Start, uniq: str) -> None:
    import pyarrow as pa

    from broker.client.bulk.encode import blocks

    server = start_broker(CONFIG)
    columns = {"value": ["a", "b"], "messageId": ["1", "2"]}
    ((_, block),) = blocks(pa.RecordBatch.from_pydict(columns), topic=uniq)
    with Connection(bulk_of(server)) as bulk:
        for _ in range(2):
            bulk.append(uniq, block, dedupe=True)
        assert read_arrow(bulk_of(server), uniq).column("value").to_pylist() == [b"a", b"b"]
        bulk.append(uniq, block)
    table = read_arrow(bulk_of(server), uniq, columns=["messageId"])
    assert table.column(0).to_pylist() == ["1", "2", "1", "2"]


def test_named_readers(start_broker: Start, uniq: str) -> None:
    server = start_broker(CONFIG)
    publish(server, uniq, numbered(10))
    with Connection(bulk_of(server)) as bulk:
        log = bulk.topics([uniq]).topics[0]
        bulk.put_reader("job/1", {uniq: (4, log.incarnation)}, ttl_s=60, hold=True)
        assert bulk.topics([uniq]).topics[0].held_from == 4
        (reader,) = bulk.readers("job/1")["readers"]
        assert reader["name"] == "job/1"
        bulk.delete_reader("job/1")
        assert bulk.topics([uniq]).topics[0].held_from is None
