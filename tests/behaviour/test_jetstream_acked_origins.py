"""Mirrors and sources of streams whose messages go when they are acked: work queues, interest."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from behaviour.test_jetstream_origins import DEADLINE_S, Api
from support.clients.nats import NatsClient

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours

COUNT = 3000
KINDS = ["workqueue", "interest"]


def until(ask: Any, wanted: Any) -> None:
    """Each answer is an event of the server."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := ask()) != wanted:
        assert time.monotonic() < deadline, found


def consumers(api: Api, stream: str) -> list[str]:
    found: list[str] = api.api(f"CONSUMER.NAMES.{stream}")["consumers"]
    return found


def messages(api: Api, stream: str) -> int:
    return int(api.info(stream)["state"]["messages"])


def fill(api: Api, first: int, last: int, subject: str = "w") -> None:
    for number in range(first, last):
        api.client.pub(subject, b"%d" % number, "")
    assert api.publish(subject, b"%d" % last)["stream"] == "W"


@pytest.mark.parametrize("kind", KINDS)
def test_a_mirror_takes_all_over(kind: str, start_broker: StartBroker) -> None:
    """In order and with its sequences, also across restarts; the origin is empty afterwards."""
    server = start_broker()
    api = Api(server)
    api.make(name="W", subjects=["w"], retention=kind)
    api.make(name="M", mirror={"name": "W"})
    until(lambda: len(consumers(api, "W")), 1)
    [name] = consumers(api, "W")
    assert name.startswith("JS_MIRROR_")
    fill(api, 1, COUNT)
    api.settled("M", COUNT)
    until(lambda: messages(api, "W"), 0)
    api.client.close()
    server.stop()
    server.start()
    api = Api(server)
    fill(api, COUNT + 1, COUNT + 10)
    api.settled("M", COUNT + 10)
    until(lambda: messages(api, "W"), 0)
    assert consumers(api, "W") == [name]
    state = api.info("M")["state"]
    assert (state["messages"], state["first_seq"]) == (COUNT + 10, 1)
    assert [row[3] for row in api._rows("M", range(1, COUNT + 11, 100))] == [
        b"%d" % number for number in range(1, COUNT + 11, 100)
    ]
    assert "error" not in api.api("STREAM.DELETE.M")
    until(lambda: consumers(api, "W"), [])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_by_kills(kind: str, start_broker: StartBroker) -> None:
    """A message goes from the origin when it is stored in the mirror, not before."""
    server = start_broker()
    api = Api(server)
    api.make(name="W", subjects=["w"], retention=kind)
    api.make(name="M", mirror={"name": "W"})
    until(lambda: len(consumers(api, "W")), 1)
    last = 0
    for _ in range(4):
        fill(api, last + 1, last + 700)
        last += 700
        server.kill()
        api.client.close()
        server.start()
        api = Api(server)
    api.settled("M", last)
    assert api.info("M")["state"]["messages"] == last
    until(lambda: messages(api, "W"), 0)


def test_other_consumers_have_their_say(start_broker: StartBroker) -> None:
    """With interest, a message stays until all have acked it; a source that is removed has none."""
    api = Api(start_broker())
    api.make(name="W", subjects=["w.>"], retention="interest")
    api.make(name="S", subjects=["s"], sources=[{"name": "W", "filter_subject": "w.a"}])
    until(lambda: len(consumers(api, "W")), 1)
    config = {"durable_name": "c", "ack_policy": "all", "filter_subject": "w.>"}
    body = {"stream_name": "W", "config": config}
    assert "error" not in api.api("CONSUMER.CREATE.W.c", body)
    for number in range(6):
        api.publish(f"w.{'ab'[number % 2]}", b"%d" % number)
    api.settled("S", 3)
    assert [row[3] for row in api.rows("S")] == [b"0", b"2", b"4"]
    assert messages(api, "W") == 6
    api.client.sub("taken")
    request = json.dumps({"batch": 6}).encode()
    api.client.pub("$JS.API.CONSUMER.MSG.NEXT.W.c", request, "taken")
    last = [api.client.message() for _ in range(6)][-1]
    api.client.pub(last.reply, b"+ACK")
    until(lambda: messages(api, "W"), 0)
    assert "error" not in api.update(name="S", subjects=["s"])
    until(lambda: consumers(api, "W"), ["c"])


def test_a_stream_that_becomes_one_by_interest_is_still_copied(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="W", subjects=["w"])
    api.make(name="M", mirror={"name": "W"})
    fill(api, 1, 5)
    api.settled("M", 5)
    assert "error" not in api.update(name="W", subjects=["w"], retention="interest")
    until(lambda: len(consumers(api, "W")), 1)
    fill(api, 6, 10)
    api.settled("M", 10)
    assert [row[3] for row in api.rows("M")] == [b"%d" % number for number in range(1, 11)]
    until(lambda: messages(api, "W"), 0)


def test_a_consumer_of_an_operator_is_read_again_from_what_is_acked(
    start_broker: StartBroker,
) -> None:
    """However often it is reset, while messages come."""
    api = Api(start_broker())
    api.make(name="W", subjects=["w"], retention="workqueue")
    config = {"durable_name": "own", "ack_policy": "flow_control", "deliver_subject": "own.to"}
    body = {"stream_name": "W", "config": config}
    assert "error" not in api.api("CONSUMER.CREATE.W.own", body)
    origin = {"name": "W", "consumer": {"name": "own", "deliver_subject": "own.to"}}
    api.make(name="M", mirror=origin)
    for turn in range(8):
        fill(api, 400 * turn + 1, 400 * turn + 400)
        assert "error" not in api.api("CONSUMER.RESET.W.own")
    api.settled("M", 3200)
    assert messages(api, "M") == 3200
    until(lambda: messages(api, "W"), 0)
    api.api("STREAM.DELETE.M")
    assert consumers(api, "W") == ["own"]


def test_somebody_else_who_listens_does_not_make_messages_vanish(
    start_broker: StartBroker,
) -> None:
    """The consumer has delivered to another subscriber before the mirror begins, and goes on."""
    server = start_broker()
    api = Api(server)
    api.make(name="W", subjects=["w"], retention="workqueue")
    other = NatsClient(server.nats)
    other.sub("own.to")
    other.ping()
    config = {"durable_name": "own", "ack_policy": "flow_control", "deliver_subject": "own.to"}
    assert "error" not in api.api("CONSUMER.CREATE.W.own", {"stream_name": "W", "config": config})
    fill(api, 1, 40)
    origin = {"name": "W", "consumer": {"name": "own", "deliver_subject": "own.to"}}
    for turn in range(3):
        name = f"M{turn}"
        api.make(name=name, mirror=origin)
        last = 40 + 20 * turn
        until(lambda: messages(api, "W"), 0)
        stored = api.info(name)["state"]
        assert (stored["last_seq"], stored["messages"]) == (last, 40 if turn == 0 else 20)
        api.api(f"STREAM.DELETE.{name}")
        fill(api, last + 1, last + 20)


def test_a_work_queue_has_one_reader_beside_its_mirror(start_broker: StartBroker) -> None:
    api = Api(start_broker())
    api.make(name="W", subjects=["w"], retention="workqueue")
    api.make(name="M", mirror={"name": "W"})
    until(lambda: len(consumers(api, "W")), 1)
    body = {"stream_name": "W", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    assert "error" not in api.api("CONSUMER.CREATE.W.c", body)
    body = {"stream_name": "W", "config": {"durable_name": "d", "ack_policy": "explicit"}}
    assert api.api("CONSUMER.CREATE.W.d", body)["error"]["err_code"] == 10099
