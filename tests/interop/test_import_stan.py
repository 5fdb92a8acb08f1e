"""NATS Streaming clients go on at our server where an original has left off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support import Address, Broker, Server
from support.stan.source import ORIGINAL, StanClient, StanSource
from support.stan.stores import contents, original_store, recorded_store

from broker.protocols.stan import stan_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60
StartBroker = Callable[..., Server]
needs_original = pytest.mark.skipif(ORIGINAL is None, reason="no nats-streaming-server on PATH")
pytestmark = pytest.mark.only_ours


def take_over(source: Path, data: Path, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "broker", "import-stan", str(source), "--data", str(data), *flags],
        capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["recorded", pytest.param("original", marks=needs_original)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make = recorded_store if request.param == "recorded" else original_store
    return make("orders", tmp_path)


@pytest.fixture
async def join() -> AsyncIterator[Callable[..., Any]]:
    clients: list[StanClient] = []

    async def connect(client_id: str, server: Server) -> StanClient:
        client = await StanClient(client_id).connect(server.nats_url)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        await client.vanish()


def sequences(found: list[pb.MsgProto]) -> list[tuple[int, bool]]:
    return [(message.sequence, message.redelivered) for message in found]


async def test_durables_go_on_where_they_were(
    store: Path, tmp_path: Path, start_broker: StartBroker, join: Callable[..., Any]
) -> None:
    before = contents(store)
    data = tmp_path / "data"
    assert "orders: 30 messages (11-40), 6 subscriptions, 64 unacknowledged" in take_over(
        store, data
    )
    broker = start_broker({"stan": {"enabled": True, "max_msgs": 25}}, data)
    worker = await join("worker", broker)
    durable = await worker.subscribe("orders", durable="d", start=pb.NewOnly)
    # limits have dropped 11 to 15; 33, 35 and 40 were not acknowledged
    assert sequences(await durable.take(3)) == [(33, True), (35, True), (40, True)]
    group = await worker.subscribe("orders", durable="dq", queue="g", start=pb.NewOnly)
    assert sequences(await group.take(1)) == [(40, True)]
    everything = await worker.subscribe("orders")
    found = await everything.take(25)
    assert sequences(found) == [(n, False) for n in range(16, 41)]
    assert [message.data for message in found] == [b"order %d" % n for n in range(16, 41)]
    times = [message.timestamp for message in found]
    assert times == sorted(times)
    # whoever is away without having closed is let in again
    stay = await join("stay", broker)
    live = await stay.subscribe("orders", durable="live", start=pb.NewOnly)
    assert sequences(await live.take(1)) == [(39, True)]
    await worker.publish("orders", b"order 41")
    for reader in (durable, group, everything, live):
        [message] = await reader.take(1)
        assert (message.sequence, message.redelivered, message.data) == (41, False, b"order 41")
    other = await stay.subscribe("other")
    [message] = await other.take(1)
    assert (message.data, message.reply) == (b"with a reply", "answers.here")
    await durable.ack(33, 35, 40)
    await durable.close()
    await worker.vanish()
    broker.restart()
    # what was acknowledged here stays so, what was not comes again
    worker = await join("worker", broker)
    durable = await worker.subscribe("orders", durable="d")
    assert sequences(await durable.take(1)) == [(41, True)]
    assert contents(store) == before


async def test_where_a_durable_goes_on_by_itself_the_original_agrees(
    tmp_path: Path, start_broker: StartBroker, join: Callable[..., Any]
) -> None:
    """The recorded durable of a group goes to another client."""
    data = tmp_path / "data"
    take_over(recorded_store("orders", tmp_path), data)
    broker = start_broker({"stan": {"enabled": True}}, data)
    other = await join("other", broker)
    group = await other.subscribe("orders", durable="dq", queue="g")
    assert sequences(await group.take(1)) == [(40, True)]
    await group.ack(40)
    await group.close(erase=True)
    group = await other.subscribe("orders", durable="dq", queue="g")
    assert sequences(await group.take(30)) == [(n, False) for n in range(11, 41)]


@needs_original
async def test_connected_clients_do_not_notice(tmp_path: Path) -> None:
    source = StanSource(tmp_path / "source", "-SV")
    source.start()
    client = await StanClient("client").connect(source.url)
    plain = await client.subscribe("c")
    durable = await client.subscribe("c", durable="d")
    await client.publish("c", b"1", b"2")
    await plain.take_and_ack(1)
    await asyncio.gather(plain.take(1), durable.take_and_ack(2))
    await source.acknowledged(3)
    source.stop()
    data = tmp_path / "data"
    assert "c: 2 messages (1-2), 2 subscriptions, 1 unacknowledged" in take_over(source.store, data)
    broker = Broker(tmp_path / "broker", {"stan": {"enabled": True}}, data)
    broker.addresses["nats"] = Address("127.0.0.1", source.port)
    broker.start()
    # it connects again by itself, to the same address
    assert sequences(await plain.take(1)) == [(2, True)]
    await client.publish("c", b"3")
    assert sequences(await plain.take(1)) == [(3, False)]
    assert sequences(await durable.take_and_ack(1)) == [(3, False)]
    await plain.ack(2, 3)
    ping = pb.PingResponse()
    await client.ask(client.answer.pingRequests, pb.Ping(connID=client.conn_id), ping)
    assert ping.error == ""
    await client.close()
    broker.close()


@needs_original
def test_a_running_original_is_left_alone(tmp_path: Path) -> None:
    with StanSource(tmp_path / "source", "-ft_group", "f", "-cluster", "nats://127.0.0.1:-1") as s:
        _refused(s, tmp_path)
    with StanSource(tmp_path / "alone") as s:
        _refused(s, tmp_path)
        s.stop()
        take_over(s.store, tmp_path / "data")


def _refused(source: StanSource, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "broker", "import-stan", str(source.store), "--data",
         str(folder / "data")],
        capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "in use by a running nats-streaming-server" in done.stderr
    assert not (folder / "data").exists()
