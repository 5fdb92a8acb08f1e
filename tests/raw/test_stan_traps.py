"""The traps of NATS Streaming, by their numbers, on ours and on the original.

8, 16 and 17 are about clients; 14, a second server of the same name on one NATS server, cannot come
up where the NATS server is a part of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.servers.processes import TARGET_ORIGINAL
from support.stan import wire
from support.stan.client import CLUSTER, StanClient, StanServer
from support.stan.servers import Join, join, stan, start_stan

__all__ = ["join", "stan", "start_stan"]

NO_RESPONDERS = b"NATS/1.0 503\r\n"


def test_01_the_channel_is_what_the_message_says(join: Join, uniq: str) -> None:
    client = join()
    sub, other = client.subscribe(uniq), client.subscribe(f"{uniq}.tail")
    assert client.publish(uniq, b"x", to=f"{uniq}.tail") == ""
    assert sub.take(1) == [1]
    client.quiet(other)


def test_02_an_acknowledgement_has_the_guid_and_nothing_else(join: Join, uniq: str) -> None:
    client = join()
    inbox = client.send(uniq, b"x", guid="abc")
    assert client.take(inbox) == wire.encode(wire.PUB_ACK, guid="abc")


def test_03_a_stale_connection_id_beats_a_valid_client(join: Join, uniq: str) -> None:
    client = join()
    assert client.publish(uniq, b"x", conn_id=b"stale") == "stan: invalid publish request"
    assert client.publish(uniq, b"x", conn_id=b"") == ""
    assert client.publish(uniq, b"x", client_id="any-other") == ""


def test_04_an_unknown_client_has_two_errors(join: Join, uniq: str) -> None:
    client = join(register=False)
    assert client.publish(uniq, b"x", conn_id=b"") == "stan: invalid publish request"
    assert client.subscribe(uniq).error == "stan: unknown clientID"


def test_05_good_answers_are_empty(join: Join, uniq: str) -> None:
    client = join()
    assert client.ping() == b""
    sub = client.subscribe(uniq)
    for path in ("sub_close_requests", "unsub_requests"):
        fields = {"client_id": client.client_id, "subject": uniq, "inbox": sub.ack_inbox}
        answer = client.request(client.paths[path], wire.encode(wire.UNSUBSCRIBE, **fields))
        assert answer == b""
        sub = client.subscribe(uniq)
    request = wire.encode(wire.CLOSE, client_id=client.client_id)
    assert client.request(client.paths["close_requests"], request) == b""


def test_06_nobody_there_is_empty_too(join: Join) -> None:
    client = join()
    assert client.request("_STAN.discover.no-such-cluster.pings", b"") == b""
    assert client.headers.startswith(NO_RESPONDERS)
    assert client.ping() == b""
    assert client.headers == b""


def test_07_a_message_comes_before_its_acknowledgement(join: Join, uniq: str) -> None:
    client = join()
    sub = client.subscribe(uniq)
    inbox = client.send(uniq, b"x")
    client.acked(inbox)
    assert [subject for subject in client.order if subject in (sub.inbox, inbox)] == [
        sub.inbox,
        inbox,
    ]


def test_09_a_start_behind_the_end_is_only_new(join: Join, uniq: str) -> None:
    client = join()
    client.fill(uniq, 2)
    sub = client.subscribe(uniq, start=wire.SEQUENCE, start_sequence=50)
    client.fill(uniq, 1)
    assert sub.take(1) == [3]


def test_10_a_restart_keeps_the_flag_but_not_the_count(
    start_stan: Callable[..., StanServer], tmp_path: Path, uniq: str
) -> None:
    server = start_stan("-st", "FILE", "-dir", str(tmp_path / "store"))
    client = StanClient(server)
    sub = client.subscribe(uniq, durable="d", ack_wait=1)
    client.fill(uniq, 1)
    assert sub.take(1) == [1]
    assert [sub.next()["redelivery_count"] for _ in range(2)] == [1, 2]
    assert client.close() == ""
    client.peer.close()
    server.stop()
    server.start()
    with StanClient(server, client.client_id) as client:
        found = client.subscribe(uniq, durable="d", ack_wait=30).next()
        # Ours remembers how often it was delivered; the original begins anew.
        assert (found["redelivered"], found["redelivery_count"]) == (True, [3, 1][TARGET_ORIGINAL])


def test_11_redelivery_goes_beyond_max_in_flight(join: Join, uniq: str) -> None:
    client = join()
    leaving = client.subscribe(uniq, queue="q", max_in_flight=5)
    client.fill(uniq, 5)
    assert leaving.take(5) == [1, 2, 3, 4, 5]
    sub = client.subscribe(uniq, queue="q", max_in_flight=1)
    assert leaving.close() == ""
    assert sorted(sub.take(5)) == [1, 2, 3, 4, 5]


def test_12_a_plain_group_can_be_a_durable_one(join: Join, uniq: str) -> None:
    client = join()
    durable = client.subscribe(uniq, queue="g", durable="d")
    plain = client.subscribe(uniq, queue="d:g")
    client.fill(uniq, 4)
    client.quiet()
    assert sorted(durable.waiting() + plain.waiting()) == [1, 2, 3, 4]


def test_13_names_of_durables_collide(join: Join, uniq: str) -> None:
    client, other = join(uniq), join(f"{uniq}-{uniq}")
    assert client.subscribe(uniq, durable=f"{uniq}-d").error == ""
    error = other.subscribe(uniq, durable="d").error  # ours keeps the parts of a name apart
    assert error == ("stan: duplicate durable registration" if TARGET_ORIGINAL else "")


def test_15_only_answers_to_heartbeats_count(
    start_stan: Callable[..., StanServer], uniq: str
) -> None:
    server = start_stan("-hbi", "100ms", "-hbt", "100ms", "-hbf", "3")
    with StanClient(server) as client:
        client.answers = False
        while not (answer := client.ping()):
            assert client.publish(uniq, b"x") in ("", "stan: invalid publish request")
        replaced = "client has been replaced or is no longer registered"
        assert wire.decode(wire.PONG, answer)["error"] == replaced
        assert len(client.queues[client.hb_inbox]) >= 4


@pytest.mark.parametrize("path", ["unsub_requests", "sub_close_requests"])
def test_18_acknowledgements_on_their_way_count(join: Join, uniq: str, path: str) -> None:
    client = join()
    leaving = client.subscribe(uniq, queue="q", durable="d", max_in_flight=1000)
    client.fill(uniq, 300)
    assert leaving.take(300) == list(range(1, 301))
    staying = client.subscribe(uniq, queue="q", durable="d")
    leaving.ack(*range(1, 301))
    assert client.leave(path, uniq, leaving.ack_inbox) == ""
    client.fill(uniq, 1)
    assert staying.take(1) == [301]
    assert staying.unsubscribe() == ""


def test_the_cluster_and_the_prefix_make_the_subjects(
    start_stan: Callable[..., StanServer], tmp_path: Path, uniq: str
) -> None:
    file = tmp_path / "stan.conf"
    file.write_text('streaming { id: "other.one", discover_prefix: "find.it" }\n')
    server = start_stan("-sc", str(file))
    with StanClient(server, cluster="other.one", prefix="find.it") as client:
        assert client.paths["pub_prefix"] == "_STAN.pub.other.one"
        assert client.paths["ping_requests"] == "find.it.other.one.pings"
        assert client.ping() == b""
        sub = client.subscribe(uniq)
        client.fill(uniq, 1)
        assert sub.take(1) == [1]
        assert client.request(f"_STAN.discover.{CLUSTER}", b"") == b""
        assert client.headers.startswith(NO_RESPONDERS)
