"""What a server of NATS Streaming still knows after its end, on ours and on the original."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stan import wire
from support.stan.client import StanClient, StanServer
from support.stan.servers import start_stan

__all__ = ["start_stan"]

Again = Callable[[StanServer], None]


@pytest.fixture
def server(start_stan: Callable[..., StanServer], tmp_path: Path) -> StanServer:
    return start_stan("-st", "FILE", "-dir", str(tmp_path / "store"))


@pytest.fixture(params=["stop", "kill"])
def again(request: pytest.FixtureRequest) -> Again:
    """Ends a server, with or without warning, and starts it."""

    def again(server: StanServer) -> None:
        if request.param == "stop":
            server.stop()
        else:
            server.kill()
        server.start()

    return again


def test_messages_and_sequences(server: StanServer, again: Again) -> None:
    with StanClient(server) as client:
        client.fill("one", 5)
        client.publish("two.x", b"\x00" * 3000, reply="r")
    again(server)
    with StanClient(server) as client:
        assert client.subscribe("one", start=wire.FIRST).take(5) == [1, 2, 3, 4, 5]
        found = client.subscribe("two.x", start=wire.LAST).next()
        assert (found["data"], found["reply"], found["sequence"]) == (b"\x00" * 3000, "r", 1)
        sub = client.subscribe("one")
        client.fill("one", 1)
        assert sub.take(1) == [6]


def test_a_durable(server: StanServer, again: Again) -> None:
    with StanClient(server, "me") as client:
        sub = client.subscribe("one", durable="d")
        client.fill("one", 5)
        assert sub.take(5) == [1, 2, 3, 4, 5]
        sub.ack(1, 2, 4)
        assert sub.close() == ""
        assert client.close() == ""
    again(server)
    with StanClient(server, "me") as client:
        client.fill("one", 1)
        sub = client.subscribe("one", durable="d")
        found = [sub.next() for _ in range(3)]
        assert [(m["sequence"], m["redelivered"]) for m in found] == [
            (3, True),
            (5, True),
            (6, False),
        ]


def reconnected(server: StanServer, before: StanClient) -> StanClient:
    """A new connection of the NATS client that has all its subjects, as libraries make one."""
    client = StanClient(server, before.client_id, register=False)
    client.peer.send(f"SUB {before.home}.> 2\r\n".encode())
    client.home, client.hb_inbox = before.home, before.hb_inbox
    client.conn_id, client.paths = before.conn_id, before.paths
    client.numbers = before.numbers
    client.flush()
    return client


def test_clients_and_subscriptions_go_on(server: StanServer, again: Again) -> None:
    before = StanClient(server)
    plain = before.subscribe("one", ack_wait=1)
    queue = before.subscribe("one", queue="q")
    before.fill("one", 2)
    assert plain.take(2) == queue.take(2) == [1, 2]
    plain.ack(1)
    queue.ack(1, 2)
    before.quiet()
    before.peer.close()
    again(server)
    with reconnected(server, before) as client:
        assert client.ping() == b""
        plain.client = queue.client = client
        client.fill("one", 1)
        seen: dict[int, bool] = {}
        while not {2, 3} <= set(seen):
            message = plain.next()
            seen.setdefault(message["sequence"], message["redelivered"])
        assert seen[3] is False
        assert queue.take(1) == [3]
        assert client.close() == ""


def test_a_durable_group(server: StanServer, again: Again) -> None:
    with StanClient(server, "me") as client:
        sub = client.subscribe("one", durable="d", queue="q")
        client.fill("one", 3)
        assert sub.take(3) == [1, 2, 3]
        sub.ack(2)
        assert client.close() == ""
    again(server)
    with StanClient(server, "you") as client:
        sub = client.subscribe("one", durable="d", queue="q")
        assert sub.take(2) == [1, 3]
        assert sub.unsubscribe() == ""
    again(server)
    with StanClient(server, "you") as client:
        sub = client.subscribe("one", durable="d", queue="q", start=wire.LAST)
        assert sub.take(1) == [3]


def test_the_cluster_is_remembered(server: StanServer, tmp_path: Path) -> None:
    server.stop()
    server.flags = (*server.flags, "-cid", "other")
    with pytest.raises(AssertionError, match=r"cluster ID .other. does not match"):
        server.start()
    server.flags = server.flags[:-2]
    server.start()


def test_exit_codes(server: StanServer) -> None:
    assert server.stop(signal.SIGTERM) == 143
    server.start()
    assert server.stop(signal.SIGINT) == 0
    server.start()
