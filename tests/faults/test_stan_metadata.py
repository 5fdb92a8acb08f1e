"""A channel whose metadata do not read is a channel, and its durables stand where they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from powercut.workloads import age
from support.clients.http import request
from support.stan.client import StanClient
from support.stan.wire import FIRST, NEW

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours

STAN: dict[str, dict[str, object]] = {"stan": {"enabled": True}}


@pytest.mark.parametrize("messages", [0, 5])
def test_durables_outlive_metadata_that_do_not_read(
    start_broker: StartBroker, messages: int
) -> None:
    """With messages: the files of a build that did not write into segments whose own they are;
    without: there is no segment that could say so."""
    server = start_broker(STAN)
    with StanClient(server, "me") as client:
        durable = client.subscribe("s", start=FIRST, durable="d")
        for number in range(messages):
            assert client.publish("s", b"%d" % number) == ""
        for _ in range(messages - 2):
            durable.next(ack=True)
        assert durable.close() == ""
        client.close()
    server.stop()
    age(server.data)
    meta = server.data / "logs" / "s" / "meta.json"
    meta.write_bytes(meta.read_bytes().replace(b'"stan"', b'"s\xfftan"'))
    server.start()
    with StanClient(server, "me") as client:
        assert client.publish("s", b"more") == ""
        durable = client.subscribe("s", start=NEW, durable="d")
        assert not durable.error
        assert client.publish("s", b"last") == ""  # which is all that a new one gets
        for number in range(messages - 2, messages) if messages else ():
            assert durable.next(ack=True)["data"] == b"%d" % number
        assert durable.next(ack=True)["data"] == b"more"
        assert durable.next(ack=True)["data"] == b"last"


def test_a_channel_is_claimed(start_broker: StartBroker) -> None:
    """Nothing of it is limited before somebody says that it is what it should be."""
    server = start_broker(STAN)
    with StanClient(server, "me") as client:
        for number in range(1, 6):
            assert client.publish("s", b"%d" % number) == ""
        assert not client.subscribe("s", durable="d").error
        client.close()
    server.stop()
    age(server.data)
    (server.data / "logs" / "s" / "meta.json").write_bytes(b"")
    server = start_broker({"stan": {"enabled": True, "max_msgs": 2}}, server.data)
    health = request(server.monitor, "GET", "/healthz")
    assert health.status == 503
    assert "log s: " in health.json["error"]
    with StanClient(server, "you") as client:
        assert client.publish("s", b"6") == ""
        everything = client.subscribe("s", start=FIRST)
        assert everything.next()["sequence"] == 1
        assert everything.take(5) == [2, 3, 4, 5, 6]
    for claimed in (True, False):
        answer = request(server.nsq_http, "POST", "/v1/topic/claim", topic="s")
        assert answer.json == {"topic": "s", "claimed": claimed}
    with StanClient(server, "her") as client:
        assert client.subscribe("s", start=FIRST).take(2) == [5, 6]
    assert request(server.monitor, "GET", "/healthz").status == 200
    server.kill()
    server.start()
    assert request(server.monitor, "GET", "/healthz").status == 200
    assert request(server.nsq_http, "POST", "/v1/topic/claim", topic="t").status == 404


def test_a_channel_that_nobody_has_claimed_is_not_deleted_for_being_inactive(
    start_broker: StartBroker,
) -> None:
    server = start_broker(STAN)
    with StanClient(server, "me") as client:
        assert client.publish("s", b"1") == ""
        assert not client.subscribe("s", durable="d").error
        client.close()
    server.stop()
    age(server.data)
    (server.data / "logs" / "s" / "meta.json").write_bytes(b"")
    server = start_broker({"stan": {"enabled": True, "max_inactivity": "300ms"}}, server.data)
    with StanClient(server, "you") as client:
        for other in ("a", "b"):  # each is looked at later than "s", and is active later
            assert client.publish(other, b"") == ""
            server.await_log(f"channel {other} was inactive and is deleted")
    assert "channel s was inactive" not in server.log_since()
    claimed = request(server.nsq_http, "POST", "/v1/topic/claim", topic="s")
    assert claimed.json == {"topic": "s", "claimed": True}
    server.await_log("channel s was inactive and is deleted")
