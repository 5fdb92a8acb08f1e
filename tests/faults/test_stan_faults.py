"""What NATS Streaming does when a disk is full, a client does not read, or goes without a word."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.engine import SYNC, WRITE
from support.services import streaming_of
from support.stan.client import StanClient
from support.stan.live import TEXT, LiveBroker
from support.stan.wire import FIRST

from broker.runtime import vfs

if TYPE_CHECKING:
    from conftest import StartBroker
    from support import Server

pytestmark = pytest.mark.only_ours

WAIT_S = 20.0
FOR_EVER = 1 << 20
CLIENTS = 1000


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBroker]:
    broker = LiveBroker(tmp_path)
    yield broker
    broker.close()


def client(server: Any, client_id: str = "", **more: Any) -> StanClient:
    return StanClient(server, client_id, **more)


def until(act: Callable[[], object], wanted: object) -> None:
    """Ask again and again, until the answer is the wanted one."""
    deadline = time.monotonic() + WAIT_S
    while (found := act()) != wanted:
        assert time.monotonic() < deadline, found


# --- the disk


@pytest.mark.parametrize("call", [WRITE, SYNC])
def test_a_full_disk_is_reported_to_the_publisher(live: LiveBroker, call: int) -> None:
    """Nothing of it is to be seen; when there is space again everything goes on."""
    with client(live) as stan:
        reader = stan.subscribe("c", start=FIRST)
        assert stan.publish("c", b"before") == ""
        assert reader.next()["data"] == b"before"
        vfs.fail(call, errno.ENOSPC, times=FOR_EVER)
        refused = [stan.publish("c", b"refused %d" % number) for number in range(5)]
        assert all("No space left on device" in error for error in refused), refused
        vfs.heal()
        until(lambda: stan.publish("c", b"after"), "")
        found = reader.next()
        assert found["data"] == b"after"
        # the sequences of what was written and could not be synced are not used again
        assert found["sequence"] == 2 or (call == SYNC and found["sequence"] > 6)


def test_a_channel_that_cannot_be_made(live: LiveBroker, tmp_path: Path) -> None:
    blocked = tmp_path / "data" / "logs" / "blocked"
    blocked.write_text("in the way of a folder")
    with client(live) as stan:
        assert "File exists" in stan.publish("blocked", b"1")
        assert "File exists" in stan.subscribe("blocked").error
        assert stan.publish("other", b"1") == ""
        blocked.unlink()
        assert stan.publish("blocked", b"1") == ""
        assert stan.subscribe("blocked", start=FIRST).next()["sequence"] == 1


# --- clients


def test_who_does_not_answer_heartbeats_is_closed(live: LiveBroker) -> None:
    """Its durable waits for the next one; nobody else is touched."""
    with client(live, "gone") as silent, client(live, "other") as other:
        durable = silent.subscribe("c", durable="d", start=FIRST)
        other.publish("c", b"1")
        assert durable.next()["redelivered"] is False
        silent.answers = False
        until(lambda: silent.ping() != b"", True)
        assert other.ping() == b""
        with client(live, "gone") as back:
            message = back.subscribe("c", durable="d").next()
            assert (message["sequence"], message["redelivery_count"]) == (1, 1)


def test_who_is_gone_without_a_word_is_replaced(live: LiveBroker) -> None:
    with client(live, "same") as first:
        durable = first.subscribe("c", durable="d", start=FIRST)
        first.publish("c", b"1")
        assert durable.next()["sequence"] == 1
    with client(live, "same") as second:
        assert second.subscribe("c", durable="d").next(ack=True)["sequence"] == 1


def test_who_does_not_read_harms_nobody(start_broker: StartBroker, uniq: str) -> None:
    server = start_broker({"stan": {"enabled": True}})
    count, body = 400, b"x" * 50_000
    with client(server) as deaf, client(server) as stan:
        deaf.subscribe(uniq, durable="d", start=FIRST)
        every = stan.subscribe(uniq, start=FIRST)
        for number in range(count):
            assert stan.publish(uniq, body) == ""
            assert every.next(ack=True)["sequence"] == number + 1
    with client(server, deaf.client_id) as again:
        durable = again.subscribe(uniq, durable="d")
        assert durable.take(count, ack=True) == list(range(1, count + 1))


def test_a_thousand_clients(start_broker: StartBroker, uniq: str) -> None:
    server: Server = start_broker({"stan": {"enabled": True, "max_subs": 0}})
    with client(server) as one:
        for number in range(CLIENTS):
            answer = one.register(client_id=f"c{number}", conn_id=b"%d" % number)
            assert answer["error"] == ""
        subs = [
            one.subscribe(uniq, client_id=f"c{number}", durable="d") for number in range(CLIENTS)
        ]
        for number in range(0, CLIENTS, 100):
            assert one.publish(uniq, b"x", client_id=f"c{number}", conn_id=b"%d" % number) == ""
        for sub in subs:
            assert sub.take(10, ack=True) == list(range(1, 11))
        assert one.ping(conn_id=b"999") == b""
        server.restart()
    with client(server) as one:
        assert one.ping(conn_id=b"999") == b""
        assert one.publish(uniq, b"x", client_id="c500", conn_id=b"") == ""


# --- the file of clients


def test_clients_that_cannot_be_remembered_are_refused(tmp_path: Path) -> None:
    """Those that are known go on."""
    live = LiveBroker(tmp_path)
    streaming = streaming_of(live.server)
    assert streaming is not None
    store = streaming.store
    with client(live, "known") as known:
        whole = store._fd
        full = os.open("/dev/full", os.O_WRONLY)
        live.ask(lambda: setattr(store, "_fd", full))
        with client(live, "new", register=False) as new:
            assert "No space left" in new.register()["error"]
            assert "No space left" in known.subscribe("c", durable="d").error
            assert known.publish("c", b"1") == ""
            assert known.ping() == b""
            live.ask(lambda: setattr(store, "_fd", whole))
            assert new.register()["error"] == ""
        durable = known.subscribe("c", durable="d", start=FIRST)
        assert durable.next(ack=True)["sequence"] == 1
    os.close(full)
    live.close()


@contextlib.contextmanager
def full_disk(live: LiveBroker) -> Iterator[None]:
    """Nothing can be added to the file of clients, until it is over and the file was mended."""
    streaming = streaming_of(live.server)
    assert streaming is not None
    store = streaming.store
    whole = store._fd
    full = os.open("/dev/full", os.O_WRONLY)
    live.ask(lambda: setattr(store, "_fd", full))
    yield
    live.ask(lambda: setattr(store, "_fd", whole))
    os.close(full)
    until(lambda: live.ask(lambda: store._doubtful), False)


def subscriptions(live: LiveBroker, channel: str = "c") -> list[tuple[str, str, bool]]:
    """Client ID, name and whether it is offline."""
    streaming = streaming_of(live.server)
    assert streaming is not None
    found = live.ask(lambda: list(streaming.channels[channel].subscriptions))
    return [
        (each.record.client_id, each.record.durable_name or each.record.queue_name, each.is_offline)
        for each in found
    ]


def test_who_leaves_while_the_disk_is_full_has_left(tmp_path: Path) -> None:
    text = TEXT.partition("hb_interval")[0]
    live = LiveBroker(tmp_path, text)
    with client(live, "a") as one, client(live, "b") as two, client(live, "stays") as stays:
        durable, plain = one.subscribe("c", durable="d", start=FIRST), one.subscribe("c")
        member = one.subscribe("c", queue="g", start=FIRST)
        stays.subscribe("c", queue="g")
        two.subscribe("c")
        two.subscribe("c", durable="kept")
        with full_disk(live):
            for sub in (durable, plain, member):
                assert "No space left" in sub.unsubscribe()
            assert two.close() == ""
        again = one.subscribe("c", durable="d", start=FIRST)
        stays.fill("c", 2)
        assert again.take(2, ack=True) == [1, 2]
    left = [("stays", "g", False), ("b", "kept", True), ("a", "d", False)]
    assert subscriptions(live) == left
    cursors = {"stan:q:g", "stan:d:b:kept", "stan:d:a:d"}
    assert live.ask(lambda: set(live.server.engine.logs["c"].cursors)) == cursors
    live.close()
    live = LiveBroker(tmp_path, text)
    streaming = streaming_of(live.server)
    assert streaming is not None
    assert set(streaming.clients) == {"a", "stays"}
    assert sorted(subscriptions(live)) == sorted(left)
    live.close()


def test_a_group_goes_on_when_one_of_its_clients_is_not_known_any_more(tmp_path: Path) -> None:
    text = TEXT.partition("hb_interval")[0]
    live = LiveBroker(tmp_path, text)
    with client(live, "a") as one, client(live, "b") as two:
        members = [each.subscribe("c", queue="g", start=FIRST) for each in (one, two)]
        one.fill("c", 4)
        for member in members:
            member.take(2, ack=True)
            member.client.flush()
    live.close()
    file = tmp_path / "data" / "stan" / "clients.state"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(
        b"".join(b"damaged\n" if b'"client_id":"a","hb' in each else each for each in lines)
    )
    live = LiveBroker(tmp_path, text)
    assert subscriptions(live) == [("b", "g", False)]
    found = live.ask(lambda: live.server.engine.logs["c"].cursors["stan:q:g"].next_seq)
    assert found == 5
    live.close()
