"""The gevent NSQ client, for a third opinion."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gevent.queue
import gnsq
import pytest
from gnsq.errors import NSQFinishFailed, NSQInvalid, NSQRequeueMessage
from support import Server

WAIT_S = 15.0


@pytest.fixture
def producer(broker: Server) -> Iterator[Any]:
    client = gnsq.Producer([str(broker.nsq)])
    client.start()
    yield client
    client.close()
    client.join(timeout=WAIT_S)


def _raw(server: Server, **options: Any) -> Any:
    client = gnsq.NsqdTCPClient(*server.nsq, **options)
    client.connect()
    return client


def test_producer_and_consumer(broker: Server, producer: Any, uniq: str) -> None:
    producer.publish(uniq, b"one")
    producer.multipublish(uniq, [b"two", b"three"])
    got: gevent.queue.Queue[bytes] = gevent.queue.Queue()

    def take(_: Any, message: Any) -> None:
        got.put(message.body)

    consumer = gnsq.Consumer(uniq, "ch", [str(broker.nsq)], message_handler=take, max_in_flight=5)
    consumer.start(block=False)
    bodies = [got.get(timeout=WAIT_S) for _ in range(3)]
    consumer.close()
    consumer.join(timeout=WAIT_S)
    assert bodies == [b"one", b"two", b"three"]


def test_a_handler_that_asks_for_a_requeue(broker: Server, producer: Any, uniq: str) -> None:
    producer.publish(uniq, b"again")
    attempts: gevent.queue.Queue[int] = gevent.queue.Queue()

    def take(_: Any, message: Any) -> None:
        attempts.put(message.attempts)
        if message.attempts < 3:
            raise NSQRequeueMessage

    consumer = gnsq.Consumer(
        uniq, "ch", [str(broker.nsq)], message_handler=take, max_backoff_duration=0
    )
    consumer.start(block=False)
    assert [attempts.get(timeout=WAIT_S) for _ in range(3)] == [1, 2, 3]
    consumer.close()
    consumer.join(timeout=WAIT_S)


def test_deferred(broker: Server, producer: Any, uniq: str) -> None:
    published = time.monotonic()
    producer.publish(uniq, b"later", defer=300)
    producer.publish(uniq, b"now")
    got: gevent.queue.Queue[tuple[bytes, float]] = gevent.queue.Queue()

    def take(_: Any, message: Any) -> None:
        got.put((message.body, time.monotonic()))

    consumer = gnsq.Consumer(uniq, "ch", [str(broker.nsq)], message_handler=take)
    consumer.start(block=False)
    taken = dict(got.get(timeout=WAIT_S) for _ in range(2))
    assert taken.keys() == {b"now", b"later"}
    assert taken[b"later"] - published >= 0.3
    consumer.close()
    consumer.join(timeout=WAIT_S)


def test_identify_tells_the_limits(broker: Server) -> None:
    client = _raw(broker, sample_rate=42)
    answer = client.identify()
    assert (answer["version"], answer["max_rdy_count"]) == ("1.3.0", 2500)
    assert (answer["sample_rate"], answer["auth_required"]) == (42, False)
    client.close_stream()


def test_an_error_is_reported_by_its_class(broker: Server, uniq: str) -> None:
    client = _raw(broker)
    client.identify()
    client.subscribe(uniq, "ch")
    client.finish("0123456789abcdef")
    responses = [client.read_response()[1] for _ in range(2)]
    assert responses[0] == b"OK"
    assert isinstance(responses[1], NSQFinishFailed)
    client.ready(5000)
    assert isinstance(client.read_response()[1], NSQInvalid)
    client.close_stream()


def test_http_client(broker: Server, uniq: str) -> None:
    client = gnsq.NsqdHTTPClient(*broker.nsq_http)
    assert client.ping() == b"OK"
    assert client.publish(uniq, b"one") == b"OK"
    assert client.multipublish(uniq, [b"two", b"three"]) == b"OK"
    assert client.info()["version"] == "1.3.0"
    topics = client.stats(topic=uniq)["topics"]
    assert [(t["topic_name"], t["depth"]) for t in topics] == [(uniq, 3)]
