"""Blocks that are published at once, and ids that are published once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from support.bulk.writer import bodies
from support.clients.bulk import BulkClient
from support.clients.http import Answer, request
from support.clients.upload import block, record, sealed

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours


def with_ids(*ids: object) -> bytes:
    """A block of records whose bodies are their ids; None: a record without."""
    records = []
    for one in ids:
        head = b"" if one is None else b"NATS/1.0\r\nA: b\r\nNats-Msg-Id: %a\r\n\r\n" % (one,)
        records.append(record(b"%a" % (one,), headers=head))
    return sealed(len(records), b"".join(records))


def append(client: BulkClient, topic: str, data: bytes, **query: object) -> Answer:
    return client.ask("POST", f"append/{quote(topic, safe='')}", data, **query)


def counts(answer: Answer) -> tuple[int, int]:
    assert answer.status == 200, answer.body
    return answer.json["records"], answer.json["duplicates"]


@pytest.fixture
def client(broker: Server) -> Iterator[BulkClient]:
    with BulkClient(broker.bulk) as client:
        yield client


def test_blocks_are_appended_each_time(client: BulkClient, uniq: str) -> None:
    rows = [b"%d" % n for n in range(100)]
    for first in (1, 101):
        assert append(client, uniq, block(rows)).json == {
            "records": 100,
            "duplicates": 0,
            "first": first,
            "last": first + 99,
        }
    assert bodies(client, uniq, 201) == rows * 2
    assert {one.reply for one in client.range(uniq, 1).records} == {b""}


def test_what_is_no_block_is_refused(client: BulkClient, uniq: str) -> None:
    assert append(client, uniq, block([b"x"])[:-8]).status == 400
    assert append(client, "a b", block([b"x"])).status == 400
    assert append(client, uniq, block([b"x"]), dedupe=2).status == 400
    assert client.ask("GET", "topics", subscribe=uniq).json["topics"] == []


def test_an_id_is_stored_once(client: BulkClient, uniq: str) -> None:
    assert counts(append(client, uniq, with_ids(1, 2, 1, None), dedupe=1)) == (3, 1)
    assert counts(append(client, uniq, with_ids(2, 3, None, 1), dedupe=1)) == (2, 2)
    assert counts(append(client, uniq, with_ids(3, 3), dedupe=1)) == (0, 2)
    assert append(client, uniq, with_ids(3), dedupe=1).json["first"] is None
    assert counts(append(client, uniq, with_ids(3))) == (1, 0)
    assert bodies(client, uniq, 7) == [b"1", b"2", b"None", b"3", b"None", b"3"]


def test_ids_that_others_published_count(client: BulkClient, uniq: str) -> None:
    assert counts(append(client, uniq, with_ids(1, 2))) == (2, 0)
    assert counts(append(client, uniq, with_ids(2, 3), dedupe=1)) == (1, 1)
    assert counts(append(client, uniq, with_ids(4))) == (1, 0)
    assert counts(append(client, uniq, with_ids(4, 5), dedupe=1)) == (1, 1)


def test_ids_are_known_after_kill_9(start_broker: StartBroker) -> None:
    server = start_broker({"storage": {"segment_size": "64KiB"}})
    many: list[Any] = list(range(3000))
    with BulkClient(server.bulk) as client:
        assert counts(append(client, "t", with_ids(*many), dedupe=1)) == (3000, 0)
    server.kill()
    server.start()
    with BulkClient(server.bulk) as client:
        assert counts(append(client, "t", with_ids(*many, 3000), dedupe=1)) == (1, 3000)


def test_a_topic_made_anew_knows_nothing(broker: Server, client: BulkClient, uniq: str) -> None:
    assert counts(append(client, uniq, with_ids(1), dedupe=1)) == (1, 0)
    assert request(broker.nsq_http, "POST", "/topic/delete", topic=uniq).status == 200
    assert counts(append(client, uniq, with_ids(1), dedupe=1)) == (1, 0)
