"""The load generator for NATS Streaming against a fake, and against the original if it is there."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.servers.processes import START_DEADLINE_S, _Process
from support.stan.fake import FakeStan

from broker.bench import limits
from broker.bench.loadgen import LoadError
from broker.bench.scenarios import StanFlowPlan, run_stan_flow
from broker.cli.bench import bench

Address = tuple[str, int]
ORIGINAL = "nats-streaming-server"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address | None]:
    if shutil.which(ORIGINAL) is None:
        yield None
        return
    folder = tmp_path_factory.mktemp("stan")
    process = _Process(folder / "log")
    process.spawn([ORIGINAL, "-a", "127.0.0.1", "-p", "-1"])
    said = " on 127.0.0.1:"
    deadline = time.monotonic() + START_DEADLINE_S
    while said not in process.output():
        process.step()
        assert time.monotonic() < deadline
    yield "127.0.0.1", int(process.output().partition(said)[2].split()[0])
    process.end(signal.SIGTERM)


@pytest.fixture(params=["fake", "original"])
def stan(
    request: pytest.FixtureRequest, original: Address | None, fakes: SimpleNamespace
) -> Iterator[Address]:
    if request.param == "fake":
        with fakes.Server(FakeStan().serve) as address:
            yield address
    elif original is not None:
        yield original
    else:
        pytest.skip("nats-streaming-server not on PATH")


@pytest.mark.parametrize(("pubs", "subs", "window"), [(1, 0, 1), (3, 0, 7), (1, 1, 40), (2, 3, 5)])
def test_everything_is_acked_in_both_directions(
    stan: Address, pubs: int, subs: int, window: int
) -> None:
    plan = StanFlowPlan(
        address=stan, msgs=500, pubs=pubs, subs=subs, window=window, max_in_flight=9, size=33
    )
    result = run_stan_flow(plan)
    assert result.published.msgs == 500
    assert result.msgs == 500 * (subs or 1)
    assert result.bytes == result.msgs * 33
    assert (result.delivered is None) == (subs == 0)
    assert (result.refused, result.redelivered) == (0, 0)
    assert result.latency_us is not None
    assert 0 < result.latency_us["p50"] <= result.latency_us["max"]


def test_sizes_vary(fakes: SimpleNamespace) -> None:
    fake = FakeStan()
    with fakes.Server(fake.serve) as address:
        plan = StanFlowPlan(address=address, msgs=400, pubs=2, subs=1, size=(0, 30))
        result = run_stan_flow(plan)
    sizes = [len(message.data) for message in fake.published]
    assert set(sizes) == set(range(31))
    assert result.bytes == result.published.bytes == sum(sizes)
    assert len({(message.clientID, message.guid) for message in fake.published}) == 400


def test_a_timed_run_ends_with_the_last_answer(stan: Address) -> None:
    seen: list[tuple[int, int]] = []
    plan = StanFlowPlan(address=stan, seconds=0.2, subs=1, size=5000)
    result = run_stan_flow(plan, lambda published, received: seen.append((published, received)))
    assert result.published.msgs == result.msgs > 0
    assert result.published.seconds >= 0.2
    assert seen == sorted(seen)


def test_publishers_wait_for_the_slowest_subscriber(
    fakes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STAN_AHEAD", 3)
    with fakes.Server(FakeStan(deliver_in=3).serve) as address:
        plan = StanFlowPlan(address=address, msgs=300, subs=2, window=50, pubs=2)
        assert run_stan_flow(plan).msgs == 600


def test_the_window_is_full_and_never_more(
    fakes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WINDOW_REFILL_DIVISOR", 20)  # each answer brings a message
    fake = FakeStan(answer_in=20)
    with fakes.Server(fake.serve) as address:
        run_stan_flow(StanFlowPlan(address=address, msgs=400, window=20))
        assert len(fake.published) == len({message.guid for message in fake.published}) == 400


def test_heartbeats_are_answered_and_clients_closed(fakes: SimpleNamespace) -> None:
    fake = FakeStan()
    with fakes.Server(fake.serve) as address:
        run_stan_flow(StanFlowPlan(address=address, msgs=300, pubs=2, subs=2))
        assert fake.asked == fake.answered == 300 // 50 * 4
        assert fake.ended == 2
        assert len(fake.closed) == 4
        assert not fake.heartbeats


def test_a_run_may_end_within_a_heartbeat(fakes: SimpleNamespace) -> None:
    fake = FakeStan("half")
    with fakes.Server(fake.serve) as address:
        assert run_stan_flow(StanFlowPlan(address=address, msgs=7, window=1)).msgs == 7
        assert fake.asked == 7 + 2  # with the answers to Connect and Close
        assert len(fake.closed) == 1


def test_a_service_that_comes_late_is_awaited(fakes: SimpleNamespace) -> None:
    fake = FakeStan("absent")
    with fakes.Server(fake.serve) as address:
        assert run_stan_flow(StanFlowPlan(address=address, msgs=10)).msgs == 10
        assert fake.absent == 0


def test_a_service_that_never_comes(
    fakes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.bench.dial.SERVICE_SECONDS", 0.0)
    with (
        fakes.Server(FakeStan("absent").serve) as address,
        pytest.raises(LoadError, match=r"no service answers on _STAN\.discover\.test-cluster"),
    ):
        run_stan_flow(StanFlowPlan(address=address, msgs=10))


def test_refusals_are_counted(fakes: SimpleNamespace) -> None:
    with fakes.Server(FakeStan("some").serve) as address:
        result = run_stan_flow(StanFlowPlan(address=address, msgs=200, subs=1, window=3))
    assert (result.published.msgs + result.refused, result.msgs) == (200, result.published.msgs)
    assert result.refused > 10


def test_what_comes_again_is_acked_again_and_not_counted(fakes: SimpleNamespace) -> None:
    with fakes.Server(FakeStan("repeat").serve) as address:
        result = run_stan_flow(StanFlowPlan(address=address, msgs=200, subs=1))
    assert (result.msgs, result.redelivered) == (200, 20)


@pytest.mark.parametrize(
    ("breakage", "reason"),
    [
        ("registered", "stan: clientID already registered"),
        ("full", "refused every message: too many channels"),
        ("stranger", "answer to publisher 1: a PubAck that matches no message"),
        ("order", "answer to subscriber 1: invalid message, or out of order"),
    ],
)
def test_a_run_says_why_it_failed(fakes: SimpleNamespace, breakage: str, reason: str) -> None:
    fake = FakeStan(breakage)
    with fakes.Server(fake.serve) as address, pytest.raises(LoadError, match=reason):
        run_stan_flow(StanFlowPlan(address=address, msgs=100, subs=1))


def test_another_service_is_reported(fakes: SimpleNamespace) -> None:
    async def mail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 welcome\r\n")
        await reader.read()

    with fakes.Server(mail) as address, pytest.raises(LoadError, match="is not a NATS server"):
        run_stan_flow(StanFlowPlan(address=address, msgs=1))


@pytest.mark.parametrize("command", [["pub", "--window", "5"], ["pubsub", "--subs", "2"]])
def test_command(stan: Address, command: list[str]) -> None:
    arguments = ["stan", *command, "--msgs", "100", "--server", "{}:{}".format(*stan)]
    done = CliRunner().invoke(bench, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["scenario"] == f"stan {command[0]}"
    assert found["published"]["msgs"] == 100
    assert "latency us" in CliRunner().invoke(bench, arguments).stdout


def test_command_tells_refusals(fakes: SimpleNamespace) -> None:
    with fakes.Server(FakeStan("some").serve) as (host, port):
        arguments = ["stan", "pub", "--msgs", "50", "--server", f"{host}:{port}"]
        assert "refused" in CliRunner().invoke(bench, arguments).stdout
