"""What NATS Streaming says of durables is on the disk by then: a power cut takes nothing back."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.services import streaming_of
from support.stan import wire
from support.stan.client import StanClient
from support.stan.live import TEXT, LiveBroker

if TYPE_CHECKING:
    from conftest import StartBroker

pytestmark = pytest.mark.only_ours


class Disk:
    """fdatasync of the file of clients: it may take its time, or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real = os.fdatasync
        self.begun = threading.Event()
        self.done = threading.Event()
        self.done.set()
        self.error = 0
        monkeypatch.setattr(os, "fdatasync", self.sync)

    def sync(self, fd: int) -> None:
        self.begun.set()
        self.done.wait()
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.real(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def live(tmp_path: Path, disk: Disk) -> Iterator[LiveBroker]:
    broker = LiveBroker(tmp_path, TEXT.partition("hb_interval")[0])
    yield broker
    disk.done.set()
    disk.error = 0
    broker.close()


def asking(stan: StanClient, **changes: object) -> tuple[str, str]:
    """Subscribe without waiting: the inbox of messages, and that of the answer."""
    inbox, answer = stan.inbox(), stan.inbox()
    fields = {"subject": "c", "max_in_flight": 9, "ack_wait": 30, "start": wire.FIRST}
    body = wire.encode(wire.SUBSCRIBE, client_id=stan.client_id, inbox=inbox, **(fields | changes))
    stan.pub(stan.paths["sub_requests"], body, answer)
    return inbox, answer


@pytest.mark.parametrize("queue", ["", "q"])
def test_a_durable_is_on_the_disk_before_it_is_confirmed(
    live: LiveBroker, disk: Disk, queue: str
) -> None:
    """And messages come behind the answer."""
    with StanClient(live) as stan:
        stan.fill("c", 2)
        disk.begun.clear()
        disk.done.clear()
        inbox, answer = asking(stan, durable="d", queue=queue)
        assert stan.subscribe("c").error == ""  # who is not remembered for good need not wait
        assert disk.begun.wait(10)
        stan.fill("c", 1)
        assert not stan.queues[answer]
        assert not stan.queues[inbox]
        if not queue:
            assert stan.subscribe("c", durable="d").error != ""  # it is in use already
        stan.order.clear()
        disk.done.set()
        sub = wire.decode(wire.SUBSCRIBED, stan.take(answer))
        assert sub["error"] == ""
        found = [wire.decode(wire.MESSAGE, stan.take(inbox))["sequence"] for _ in range(3)]
        assert found == [1, 2, 3]
        assert stan.order.index(answer) < stan.order.index(inbox)
        disk.done.clear()
        gone = stan.inbox()
        fields = {"client_id": stan.client_id, "subject": "c", "inbox": sub["ack_inbox"]}
        stan.pub(stan.paths["unsub_requests"], wire.encode(wire.UNSUBSCRIBE, **fields), gone)
        stan.quiet()
        assert not stan.queues[gone]
        disk.done.set()
        assert stan.take(gone) == b""


def test_who_closes_meanwhile_gets_nothing(live: LiveBroker, disk: Disk) -> None:
    with StanClient(live) as stan:
        stan.fill("c", 1)
        disk.done.clear()
        inbox, answer = asking(stan, durable="d")
        assert stan.close() == ""
        disk.done.set()
        found = wire.decode(wire.SUBSCRIBED, stan.take(answer))
        assert found["error"] == "stan: unknown clientID"
        assert not stan.queues[inbox]
        assert stan.register()["error"] == ""
        assert stan.subscribe("c", durable="d").take(1) == [1]


def test_a_disk_that_fails_is_reported(live: LiveBroker, disk: Disk) -> None:
    with StanClient(live) as stan:
        stan.fill("c", 2)
        disk.error = errno.EIO
        assert "Input/output error" in stan.subscribe("c", durable="d", start=wire.FIRST).error
        disk.error = 0
        sub = stan.subscribe("c", durable="d", start=wire.FIRST)
        assert sub.error == ""
        assert sub.take(2) == [1, 2]


def test_a_disk_that_fails_and_is_full_is_reported(live: LiveBroker, disk: Disk) -> None:
    streaming = streaming_of(live.server)
    assert streaming is not None
    store = streaming.store
    full = os.open("/dev/full", os.O_WRONLY)
    with StanClient(live) as stan:
        whole = store._fd
        disk.error = errno.EIO
        disk.done.clear()
        disk.begun.clear()
        asked = asking(stan, durable="d")
        assert disk.begun.wait(10)
        live.ask(lambda: setattr(store, "_fd", full))
        disk.done.set()
        answer = wire.decode(wire.SUBSCRIBED, stan.take(asked[1]))
        assert "Input/output error" in answer["error"]
        live.ask(lambda: setattr(store, "_fd", whole))
        disk.error = 0
        assert stan.subscribe("c", durable="d").error == ""
    os.close(full)


def test_a_subscription_that_cannot_be_remembered_leaves_nothing(
    live: LiveBroker, tmp_path: Path
) -> None:
    with StanClient(live) as stan:
        stan.fill("c", 1)
        blocked = tmp_path / "data" / "logs" / "c" / "cursors"
        blocked.touch()
        assert "File exists" in stan.subscribe("c").error
        blocked.unlink()
        assert live.ask(lambda: list(live.server.engine.logs["c"].cursors)) == []
        assert stan.subscribe("c").error == ""


def test_a_durable_is_as_new_when_only_its_record_is_left(
    start_broker: StartBroker, uniq: str
) -> None:
    """The journal of its cursor need not be on the disk yet."""
    server = start_broker({"stan": {"enabled": True}})
    with StanClient(server, "me") as stan:
        stan.fill(uniq, 3)
        assert stan.subscribe(uniq, durable="d", start=wire.NEW).error == ""
    server.kill()
    (cursors,) = [path for path in server.data.rglob("cursors") if path.is_dir()]
    shutil.rmtree(cursors)
    server.start()
    with StanClient(server, "me") as stan:
        sub = stan.subscribe(uniq, durable="d", start=wire.FIRST)
        stan.fill(uniq, 1)
        assert sub.take(1) == [4]
