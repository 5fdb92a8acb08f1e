"""Requests of NATS Streaming and every error of them, on ours and on the original."""

from __future__ import annotations

import pytest
from support.stan import wire
from support.stan.client import CLUSTER
from support.stan.servers import Join, join, stan

__all__ = ["join", "stan"]

BAD_CLIENT_ID = "stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
BAD_CONNECT = "stan: invalid connection request"
BAD_PUBLISH = "stan: invalid publish request"
BAD_SUBJECT = "stan: invalid subject"
COLON = "stan: durable name of a durable queue subscriber can't contain the character ':'"
NO_PROTOBUF = b"\xff\xff\xff"
BAD_CHANNELS = ["", ".a", "a.", "a..b", "a/b", "*", ">", "a.*", "a.>", "a*"]


def test_connecting(join: Join) -> None:
    client = join(register=False)
    assert client.register() == {
        "pub_prefix": f"_STAN.pub.{CLUSTER}",
        "sub_requests": f"_STAN.sub.{CLUSTER}",
        "unsub_requests": f"_STAN.unsub.{CLUSTER}",
        "close_requests": f"_STAN.close.{CLUSTER}",
        "sub_close_requests": f"_STAN.subclose.{CLUSTER}",
        "ping_requests": f"_STAN.discover.{CLUSTER}.pings",
        "ping_interval": 5,
        "ping_max_out": 3,
        "protocol": 1,
        "error": "",
        "public_key": "",
    }


def test_connecting_without_pings(join: Join) -> None:
    client = join(register=False)
    found = client.register(protocol=0, conn_id=b"", ping_interval=0, ping_max_out=0)
    assert found["protocol"] == 1
    assert (found["ping_requests"], found["ping_interval"], found["ping_max_out"]) == ("", 0, 0)
    assert client.publish("without.pings", b"x", conn_id=b"") == ""


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"heartbeat_inbox": ""}, BAD_CONNECT),
        ({"client_id": ""}, BAD_CLIENT_ID),
        ({"client_id": "a.b"}, BAD_CLIENT_ID),
        ({"client_id": "a b"}, BAD_CLIENT_ID),
        ({"client_id": "\u00e4"}, BAD_CLIENT_ID),
        ({"client_id": "a\n"}, BAD_CLIENT_ID),
        ({"client_id": "Aa0-_"}, ""),
        ({"ping_interval": 0}, ""),
    ],
)
def test_connect_errors(join: Join, changes: dict[str, str], error: str) -> None:
    client = join(register=False)
    found = client.register(**changes)
    assert found["error"] == error
    if error:
        assert {value for name, value in found.items() if name != "error"} == {"", 0}
    else:
        assert (
            client.close(**({"client_id": changes["client_id"]} if "client_id" in changes else {}))
            == ""
        )


@pytest.mark.parametrize(
    ("path", "spec", "error"),
    [
        ("ping_requests", wire.PONG, None),
        ("sub_requests", wire.SUBSCRIBED, "stan: invalid subscription request"),
        ("unsub_requests", wire.SUBSCRIBED, "stan: invalid unsubscribe request"),
        ("sub_close_requests", wire.SUBSCRIBED, "stan: invalid unsubscribe request"),
        ("close_requests", wire.CLOSED, "stan: invalid close request"),
    ],
)
def test_requests_that_are_no_protobuf(join: Join, path: str, spec: wire.Spec, error: str) -> None:
    client = join()
    if error is None:
        inbox = client.inbox()
        client.pub(client.paths[path], NO_PROTOBUF, inbox)
        assert client.ping() == b""
        return
    assert wire.decode(spec, client.request(client.paths[path], NO_PROTOBUF))["error"] == error


def test_a_connection_request_that_is_no_protobuf(join: Join) -> None:
    client = join(register=False)
    found = client.request(f"_STAN.discover.{CLUSTER}", NO_PROTOBUF)
    assert wire.decode(wire.CONNECTED, found)["error"] == BAD_CONNECT


def test_publishing(join: Join, uniq: str) -> None:
    client = join()
    inbox = client.send(uniq, b"x", guid="some guid")
    assert client.acked(inbox) == {"guid": "some guid", "error": ""}


def test_a_publish_that_is_no_protobuf(join: Join) -> None:
    client = join()
    inbox = client.inbox()
    client.pub(f"_STAN.pub.{CLUSTER}.x", NO_PROTOBUF, inbox)
    assert client.acked(inbox) == {"guid": "", "error": BAD_PUBLISH}


@pytest.mark.parametrize(
    "changes",
    [
        {"guid": ""},
        *({"subject": name} for name in BAD_CHANNELS),
        {"client_id": "nobody-known", "conn_id": b""},
        {"client_id": "", "conn_id": b""},
        {"conn_id": b"nobody-known"},
    ],
)
def test_publish_errors(join: Join, uniq: str, changes: dict[str, str]) -> None:
    client = join()
    inbox = client.send(uniq, b"x", **({"guid": "g", "to": "x"} | changes))
    assert client.acked(inbox) == {"guid": changes.get("guid", "g"), "error": BAD_PUBLISH}
    assert client.publish(uniq, b"x") == ""


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"client_id": ""}, "stan: clientID missing"),
        ({"client_id": "nobody-known"}, "stan: unknown clientID"),
        ({"ack_wait": 0}, "stan: invalid ack wait time, should be >= 1s"),
        ({"ack_wait": -1}, "stan: invalid ack wait time, should be >= 1s"),
        ({"max_in_flight": 0}, "stan: invalid MaxInflight, should be >= 1"),
        ({"max_in_flight": -5}, "stan: invalid MaxInflight, should be >= 1"),
        ({"start": 5}, "stan: invalid start position"),
        ({"start": -1}, "stan: invalid start position"),
        *(({"subject": name}, BAD_SUBJECT) for name in BAD_CHANNELS),
        ({"durable": "a:b", "queue": "q"}, COLON),
        # Of several mistakes the first of this order is reported.
        ({"client_id": "", "ack_wait": 0}, "stan: clientID missing"),
        ({"ack_wait": 0, "max_in_flight": 0}, "stan: invalid ack wait time, should be >= 1s"),
        ({"max_in_flight": 0, "start": 9}, "stan: invalid MaxInflight, should be >= 1"),
        ({"start": 9, "subject": "*"}, "stan: invalid start position"),
        ({"subject": "*", "client_id": "nobody-known"}, BAD_SUBJECT),
        ({"durable": "a:b"}, ""),
    ],
)
def test_subscribe_errors(join: Join, uniq: str, changes: dict[str, object], error: str) -> None:
    client = join()
    found = client.subscribe(uniq, **changes)
    assert found.error == error
    assert bool(found.ack_inbox) == (not error)


def test_subscribing_without_an_inbox(join: Join, uniq: str) -> None:
    client = join()
    fields = {"client_id": client.client_id, "subject": uniq, "max_in_flight": 1, "ack_wait": 1}
    answer = client.request(client.paths["sub_requests"], wire.encode(wire.SUBSCRIBE, **fields))
    found = wire.decode(wire.SUBSCRIBED, answer)
    assert found["error"] == ""
    assert client.leave("unsub_requests", uniq, found["ack_inbox"]) == ""


def test_the_ack_inbox_is_the_servers_choice(join: Join, uniq: str) -> None:
    client = join()
    one, two = client.subscribe(uniq), client.subscribe(uniq)
    assert one.ack_inbox != two.ack_inbox
    assert one.ack_inbox.startswith("_INBOX.")


@pytest.mark.parametrize("path", ["unsub_requests", "sub_close_requests"])
def test_errors_of_leaving(join: Join, uniq: str, path: str) -> None:
    client, other = join(), join()
    sub = client.subscribe(uniq)
    assert client.leave(path, f"{uniq}.none", sub.ack_inbox) == "stan: unknown channel"
    assert client.leave(path, uniq, "nowhere") == "stan: invalid subscription"
    assert other.leave(path, uniq, sub.ack_inbox) == "stan: unknown clientID"
    assert client.leave(path, uniq, sub.ack_inbox, client_id="nobody-known") == (
        "stan: unknown clientID"
    )
    assert client.leave(path, uniq, sub.ack_inbox) == ""
    assert client.leave(path, uniq, sub.ack_inbox) == "stan: invalid subscription"


@pytest.mark.parametrize("path", ["unsub_requests", "sub_close_requests"])
def test_leaving_by_the_inbox_of_messages(join: Join, uniq: str, path: str) -> None:
    client = join()
    sub = client.subscribe(uniq)
    assert client.leave(path, uniq, sub.inbox) == ""
    client.publish(uniq, b"x")
    client.quiet(sub)


def test_closing(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq)
    assert client.close() == ""
    assert client.close() == "stan: unknown clientID"
    assert client.publish(uniq, b"x") == BAD_PUBLISH
    assert client.subscribe(uniq).error == "stan: unknown clientID"
    assert sub.unsubscribe() != ""
    assert client.register()["error"] == ""  # the id is free again


def test_the_id_of_a_client_that_answers_is_taken(join: Join) -> None:
    client = join()
    other = join(register=False)
    inbox = other.inbox()
    fields = {"client_id": client.client_id, "heartbeat_inbox": other.hb_inbox}
    other.pub(f"_STAN.discover.{CLUSTER}", wire.encode(wire.CONNECT, **fields), inbox)
    client.wait()  # for the question whether it is there
    found = wire.decode(wire.CONNECTED, other.take(inbox))
    assert found["error"] == "stan: clientID already registered"
    assert client.heartbeats == 1


def test_the_id_of_a_client_that_is_gone_is_free(join: Join, uniq: str) -> None:
    gone = join(uniq)
    gone.peer.close()
    client = join(register=False)
    assert client.register(client_id=uniq)["error"] == ""
    assert client.close(client_id=uniq) == ""
    gone = join(uniq)  # for the end of the test


def test_the_id_of_a_client_that_is_silent_is_free(join: Join, uniq: str) -> None:
    silent = join(uniq)
    silent.answers = False
    sub = silent.subscribe(uniq)
    client = join(uniq, register=False)
    assert client.register()["error"] == ""
    assert silent.ping() != b""
    client.publish(uniq, b"x")
    client.quiet()
    silent.flush()
    assert sub.waiting() == []


def test_pings(join: Join) -> None:
    client = join()
    assert client.ping() == b""
    replaced = "client has been replaced or is no longer registered"
    answer = client.ping(conn_id=b"nobody-known")
    assert wire.decode(wire.PONG, answer)["error"] == replaced
    unanswered = client.inbox()
    client.pub(client.paths["ping_requests"], b"", unanswered)
    assert client.ping() == b""
    assert not client.queues[unanswered]
    client.close()
    assert wire.decode(wire.PONG, client.ping())["error"] == replaced


def test_a_channel_that_differs_by_case_only(join: Join, uniq: str) -> None:
    client = join()
    upper = uniq.upper()
    assert client.publish(uniq, b"x") == ""
    error = (
        f'rejecting channel "{upper}" because channel "{uniq}" alreay exists'
        " (different cases not allowed)"
    )
    assert client.publish(upper, b"x") == error
    assert client.subscribe(upper).error == error


def test_letters_of_which_another_case_has_two_are_not_those_two(join: Join, uniq: str) -> None:
    client = join()
    for name in ("\u00df", "ss", "\u0130", "i\u0307"):
        assert client.publish(uniq + name, b"x", to="any") == ""
    for name in ("SS", "\u00c4", "\u00e4"):
        error = client.publish(uniq + name, b"x", to="any")
        assert ("different cases" in error) is (name != "\u00c4"), name


def test_channels_with_odd_names(join: Join, uniq: str) -> None:
    client = join()
    for name in (
        f"{uniq}.a-b_c",
        f"{uniq}.\u00e4\u00f6",
        f"{uniq}.$x",
        f"{uniq}:y",
        uniq + "z" * 200,
    ):
        sub = client.subscribe(name)
        assert client.publish(name, b"x", to="any") == ""
        assert sub.next()["subject"] == name
