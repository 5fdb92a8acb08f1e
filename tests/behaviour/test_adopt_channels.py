"""Channels of NATS Streaming become streams of JetStream, and their durables consumers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from nats.js.errors import NotFoundError
from support.clients.http import request
from support.stan.source import StanClient
from support.stan.stores import recorded_store

from broker.config.config import Config
from broker.importers import channels
from broker.importers.channels import Options, Outcome, adopting, consumer_names
from broker.importers.jetstream.staging import Staging
from broker.importers.nsqd import ImportRefusedError
from broker.protocols.stan.store import SubRecord

if TYPE_CHECKING:
    from conftest import StartBroker

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60
ON = {"stan": {"enabled": True}, "jetstream": {"enabled": True}}
Join = Callable[..., Any]

pytestmark = pytest.mark.only_ours


def command(name: str, *flags: str, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "broker", name, *flags, "--quiet"],
        capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def adopt(data: Path, *flags: str, code: int = 0) -> tuple[str, str]:
    return command("adopt-channels", "--data", str(data), *flags, code=code)


def adopt_here(data: Path, options: Options | None = None) -> Outcome:
    with adopting(data, Config(), options or Options()) as work:
        return asyncio.run(work.run())


@pytest.fixture
async def join() -> AsyncIterator[Join]:
    clients: list[StanClient] = []

    async def connect(client_id: str, url: str) -> StanClient:
        client = await StanClient(client_id).connect(url)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        await client.vanish()


async def place(js: Any, stream: str, consumer: str) -> tuple[int, int, int, int]:
    """Ack floor, last delivered, waiting for acks, still to be delivered."""
    info = await js.consumer_info(stream, consumer)
    return (
        info.ack_floor.stream_seq, info.delivered.stream_seq, info.num_ack_pending,
        info.num_pending,
    )  # fmt: skip


async def pull(js: Any, stream: str, consumer: str, count: int) -> list[tuple[int, bool]]:
    """Fetch so many messages: seq, and whether it had been delivered before. Not acked."""
    subscription = await js.pull_subscribe_bind(consumer, stream)
    found: list[Any] = []
    while len(found) < count:
        found += await subscription.fetch(count - len(found), timeout=DEADLINE_S)
    return [(m.metadata.sequence.stream, m.metadata.num_delivered > 1) for m in found]


async def test_from_a_store_of_the_original_to_streams(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    data = tmp_path / "data"
    command("import-stan", str(recorded_store("orders", tmp_path)), "--data", str(data))
    said, _ = adopt(data, "--dry-run")
    assert "orders -> orders: 30 messages (11-40), 3 consumers, 5 unacknowledged" in said
    assert not (data / "jetstream").exists()
    assert adopt(data)[0] == said.replace("found", "adopted")
    broker = start_broker(ON, data)
    client = await nats.connect(broker.nats_url)
    js = client.jetstream()
    info = await js.stream_info("orders")
    assert (info.config.subjects, info.state.first_seq, info.state.last_seq) == (["orders"], 11, 40)
    for seq in range(11, 41):
        assert (await js.get_msg("orders", seq)).data == b"order %d" % seq
    assert await place(js, "orders", "d") == (32, 40, 3, 0)
    assert await place(js, "orders", "dq") == (39, 40, 1, 0)
    assert await place(js, "orders", "live") == (38, 40, 1, 0)
    assert (await js.publish("orders", b"order 41")).seq == 41
    assert await pull(js, "orders", "d", 4) == [(33, True), (35, True), (40, True), (41, False)]
    assert await pull(js, "orders", "live", 2) == [(39, True), (41, False)]
    await client.close()


async def test_all_that_was_stored_is_kept(
    tmp_path: Path, start_broker: StartBroker, join: Join
) -> None:
    """From all protocols, with headers; what a durable has acked beyond a gap stays acked."""
    data = tmp_path / "data"
    broker = start_broker(ON, data)
    worker = await join("worker", broker.nats_url)
    fresh = await worker.subscribe("orders.eu", durable="fresh", in_flight=1)
    durable = await worker.subscribe("orders.eu", durable="d", in_flight=7, ack_wait=30)
    await worker.publish("orders.eu", *(b"%d" % n for n in range(1, 9)))
    await worker.nc.publish("orders.eu", b"9", headers={"Kind": "late"})
    await worker.nc.flush()
    request(broker.nsq_http, "POST", "/pub?topic=orders.eu&defer=3600000", b"10")
    found = await durable.take(7)
    await durable.ack(*(message.sequence for message in found if message.sequence not in {2, 4}))
    assert [message.sequence for message in await durable.take(2)] == [8, 9]
    await fresh.take(1)
    for subscription in (durable, fresh):
        await subscription.close()
    await worker.close()
    broker.stop()
    said, _ = adopt(data, "--remove")
    assert said.splitlines() == [
        (
            "orders.eu -> orders_eu: 10 messages (1-10), 2 consumers, 6 unacknowledged,"
            " channel removed"
        ),
        "1 channels, 10 messages adopted",
    ]
    assert not (data / "logs" / "orders.eu").exists()
    broker.start()
    client = await nats.connect(broker.nats_url)
    js = client.jetstream()
    stored = [await js.get_msg("orders_eu", seq) for seq in range(1, 11)]
    assert [(each.subject, each.data) for each in stored] == [
        ("orders.eu", b"%d" % n) for n in range(1, 11)
    ]
    assert stored[8].headers == {"Kind": "late"}
    info = await js.consumer_info("orders_eu", "d")
    assert (info.config.max_ack_pending, info.config.ack_wait) == (7, 30.0)
    assert await place(js, "orders_eu", "d") == (1, 10, 5, 0)
    assert await pull(js, "orders_eu", "d", 5) == [
        (2, True), (4, True), (8, True), (9, True), (10, True),
    ]  # fmt: skip
    assert await place(js, "orders_eu", "fresh") == (0, 1, 1, 9)
    # clients of NATS Streaming still reach the stream
    later = await join("later", broker.nats_url)
    await later.publish("orders.eu", b"11")
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while (await js.stream_info("orders_eu")).state.last_seq < 11:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    assert (await js.get_msg("orders_eu", 11)).data == b"11"
    again = await later.subscribe("orders.eu")
    assert [message.data for message in await again.take(1)] == [b"11"]
    await client.close()


async def test_what_cannot_be_adopted_is_listed(
    tmp_path: Path, start_broker: StartBroker, join: Join
) -> None:
    data = tmp_path / "data"
    broker = start_broker(ON, data)
    worker = await join("worker", broker.nats_url)
    for channel in ("a.b", "a_b", "free", "read.by.nsq", "taken"):
        await worker.publish(channel, b"1")
    request(broker.nsq_http, "POST", "/channel/create?topic=read.by.nsq&channel=c")
    js = worker.nc.jetstream()
    await js.add_stream(name="HAS", subjects=["taken"])
    await worker.close()
    _, problem = adopt(data, code=1)
    assert "in use" in problem
    broker.stop()
    _, problem = adopt(data, "--stream", "S", code=1)
    assert "5 channels cannot become one stream S" in problem
    _, problem = adopt(data, "--channel", "nothing.*", code=1)
    assert "there is no such channel" in problem
    said, problem = adopt(data, "--remove", code=3)
    assert [line.split(":")[0] for line in said.splitlines()[:-1]] == [
        "a.b -> a_b", "free -> free", "read.by.nsq -> read_by_nsq",
    ]  # fmt: skip
    assert problem.splitlines() == [
        "a_b: stream a_b exists already: not adopted",
        "read.by.nsq: it is not removed: NSQ channels read it (c)",
        "taken: stream HAS stores this subject already: not adopted",
    ]
    said, problem = adopt(data, "--channel", "a_b", "--account", "NOPE", code=1)
    assert (said, problem) == (
        "",
        "adopt-channels: there is no account NOPE: nobody could log in to it\n",
    )
    said, _ = adopt(data, "--channel", "a_b", "--stream", "OTHER", "--account", "$G")
    assert said.startswith("a_b -> OTHER: 1 messages (1-1)")
    broker.start()
    client = await nats.connect(broker.nats_url)
    js = client.jetstream()
    assert (await js.get_msg("a_b", 1)).subject == "a.b"
    assert (await js.get_msg("OTHER", 1)).subject == "a_b"
    with pytest.raises(NotFoundError):
        await js.stream_info("taken")
    await client.close()


async def test_a_channel_of_which_something_was_left_out_is_not_removed(
    tmp_path: Path, start_broker: StartBroker, join: Join
) -> None:
    data, durable = tmp_path / "data", "n" * 300
    broker = start_broker(ON, data)
    worker = await join("worker", broker.nats_url)
    await worker.publish("c", b"1")
    await worker.subscribe("c", durable=durable)
    await worker.close()
    broker.stop()
    said, problem = adopt(data, "--remove", code=3)
    assert "c -> c: 1 messages" in said
    assert "removed" not in said
    assert problem.splitlines() == [
        f"c: consumer {durable}: consumer name is too long, maximum allowed is 255: left out",
        "c: it is not removed: something of it was left out",
    ]
    assert (data / "logs" / "c").is_dir()


def test_an_interrupted_adoption_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    command("import-stan", str(recorded_store("orders", tmp_path)), "--data", str(data))

    def end(*_: object) -> None:
        raise OSError("the process ended")

    for name in ("rename", "_move_config"):
        owner = Path if name == "rename" else Staging
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, end)
            with pytest.raises(ImportRefusedError, match="the process ended"):
                adopt_here(data, Options(patterns=("orders",), remove=True))
        assert (data / "logs" / "orders").exists()
    outcome = adopt_here(data, Options(patterns=("orders",), remove=True))
    assert "exists already" in outcome.remarks[0]
    assert (data / "jetstream/%24G/orders/stream.json").exists()
    assert not (data / channels.STAGING).exists()


def durable(client: str, name: str, group: str = "") -> SubRecord:
    queue = f"{name}:{group}" if group else ""
    return SubRecord(1, "c", "", client, "", "", name, queue, 1, 1)


def test_names_of_consumers() -> None:
    records = [
        durable("a", "one"), durable("a", "two.x"), durable("b", "two.x"),
        durable("c", "two.x", "group"), durable("a", "two x"),
    ]  # fmt: skip
    assert consumer_names(records) == ["one", "a-two_x", "b-two_x", "group-two_x", "a-two_x-2"]
