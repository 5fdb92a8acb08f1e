"""The limits of NATS Streaming, on ours and on the original."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.clients.http import request
from support.servers.processes import START_DEADLINE_S
from support.stan import wire
from support.stan.client import StanClient, StanServer
from support.stan.servers import start_stan

__all__ = ["start_stan"]

Start = Callable[..., StanServer]
MANY_CHANNELS = "too many channels"
MANY_SUBS = "too many subscriptions per channel"


def channel(server: StanServer, name: str) -> Any:
    """What the page says; None when there is no such channel."""
    answer = request(server.monitor, "GET", "/streaming/channelsz", channel=name)
    return answer.json if answer.status == 200 else None


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, "it does not happen"


def test_channels(start_stan: Start) -> None:
    server = start_stan("-mc", "2")
    with StanClient(server) as client:
        assert client.publish("one", b"x") == ""
        assert client.subscribe("two").error == ""
        assert client.publish("three", b"x") == MANY_CHANNELS
        assert client.subscribe("three").error == MANY_CHANNELS
        assert client.publish("two", b"x") == ""


def test_subscriptions(start_stan: Start) -> None:
    server = start_stan("-msu", "2")
    with StanClient(server) as client:
        durable = client.subscribe("one", durable="d")
        assert durable.error == ""
        assert durable.close() == ""
        plain = client.subscribe("one")
        assert plain.error == ""
        assert client.subscribe("one").error == MANY_SUBS  # one that is offline counts
        assert client.subscribe("one", queue="q").error == MANY_SUBS
        assert client.subscribe("two").error == ""
        assert client.subscribe("one", durable="d").error == ""
        assert plain.close() == ""
        assert client.subscribe("one", queue="q").error == ""


@pytest.mark.parametrize("store", ["MEMORY", "FILE"])
def test_messages(start_stan: Start, tmp_path: Path, store: str) -> None:
    server = start_stan("-mm", "3", "-st", store, "-dir", str(tmp_path / "store"))
    with StanClient(server) as client:
        client.fill("one", 10)
        found = channel(server, "one")
        assert (found["msgs"], found["first_seq"], found["last_seq"]) == (3, 8, 10)
        assert client.subscribe("one", start=wire.FIRST).take(3) == [8, 9, 10]
        assert client.subscribe("one", start=wire.SEQUENCE, start_sequence=2).take(1) == [8]


@pytest.mark.parametrize("store", ["MEMORY", "FILE"])
def test_bytes(start_stan: Start, tmp_path: Path, store: str) -> None:
    server = start_stan("-mb", "1KB", "-st", store, "-dir", str(tmp_path / "store"))
    with StanClient(server) as client:
        client.publish("one", *[b"x" * 300] * 8)
        found = channel(server, "one")
        assert found["bytes"] <= 1024
        assert (found["msgs"], found["last_seq"]) == (3 if store == "MEMORY" else 2, 8)
        client.publish("one", b"x" * 5000)  # the newest is kept whatever its size
        assert client.subscribe("one", start=wire.FIRST).take(1) == [9]
        assert channel(server, "one")["msgs"] == 1


@pytest.mark.parametrize("limits", [[], ["-mb", "0"], ["-mm", "5"]])
def test_what_is_stored_is_counted_also_if_it_came_at_once(
    start_stan: Start, tmp_path: Path, limits: list[str]
) -> None:
    server = start_stan("-st", "FILE", "-dir", str(tmp_path / "store"), *limits)
    with StanClient(server) as client:
        client.fill("one", 20)
        client.publish("two", *(b"%d" % number for number in range(1, 21)))  # one by one
        found = channel(server, "one")
        assert found["msgs"] == (5 if "-mm" in limits else 20)
        assert found["bytes"] == channel(server, "two")["bytes"] > 20 * found["msgs"]


def test_what_is_gone_counts_as_acknowledged(start_stan: Start) -> None:
    server = start_stan("-mm", "2")
    with StanClient(server) as client:
        sub = client.subscribe("one", max_in_flight=2, ack_wait=1)
        client.fill("one", 2)
        assert sub.take(2) == [1, 2]
        client.fill("one", 2)  # 3 and 4; the others are not there any more
        assert sub.take(2) == [3, 4]


def test_age(start_stan: Start) -> None:
    server = start_stan("-ma", "1s")
    with StanClient(server) as client:
        client.fill("one", 3)
        until(lambda: channel(server, "one")["msgs"] == 0)
        found = channel(server, "one")
        assert (found["first_seq"], found["last_seq"], found["bytes"]) == (4, 3, 0)
        sub = client.subscribe("one", start=wire.FIRST)
        client.fill("one", 1)
        assert sub.take(1) == [4]


def test_inactivity(start_stan: Start) -> None:
    server = start_stan("-mi", "300ms")
    with StanClient(server) as client:
        sub = client.subscribe("one", durable="d")
        client.fill("one", 2)
        assert sub.take(2, ack=True) == [1, 2]
        client.fill("two", 1)
        until(lambda: channel(server, "two") is None)
        assert channel(server, "one") is not None  # somebody is subscribed
        assert sub.close() == ""
        until(lambda: channel(server, "one") is None)  # a durable that is offline is not enough
        sub = client.subscribe("one", durable="d", start=wire.NEW)
        client.fill("one", 1)
        assert sub.take(1) == [1]


def test_limits_of_some_channels(start_stan: Start, tmp_path: Path) -> None:
    file = tmp_path / "stan.conf"
    file.write_text(
        """
        streaming {
          store_limits {
            max_channels: 10, max_msgs: 5, max_subs: 2
            channels {
              "a.>": { max_msgs: 2 }
              "a.b": { max_subs: 1 }
              "a.b.*": { max_msgs: 0 }
            }
          }
        }
        """
    )
    server = start_stan("-sc", str(file))
    with StanClient(server) as client:
        for name, kept in (("x", 5), ("a", 5), ("a.x", 2), ("a.b", 2), ("a.b.c", 8)):
            client.fill(name, 8)
            assert channel(server, name)["msgs"] == kept, name
        assert client.subscribe("a.b").error == ""
        assert client.subscribe("a.b").error == MANY_SUBS
        assert [client.subscribe("a.x").error for _ in range(3)] == ["", "", MANY_SUBS]
