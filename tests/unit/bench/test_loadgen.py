"""The load generator against fakes always, and against the original servers when they are there."""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from broker.bench import limits
from broker.bench.dial import dial_nsq
from broker.bench.loadgen import LoadError
from broker.bench.scenarios import (
    NatsFlowPlan,
    NatsRequestPlan,
    NsqFlowPlan,
    run_nats_flow,
    run_nats_request,
    run_nsq_flow,
)
from broker.cli.bench import bench

Address = tuple[str, int]


@pytest.mark.parametrize(("pubs", "subs", "subjects"), [(1, 0, 1), (3, 2, 1), (2, 3, 5)])
def test_nats_subscribers_receive_everything(
    nats: Address, uniq: str, pubs: int, subs: int, subjects: int
) -> None:
    plan = NatsFlowPlan(
        address=nats, msgs=1000, pubs=pubs, subs=subs, subjects=subjects, subject=uniq
    )
    result = run_nats_flow(plan)
    assert result.published.msgs == 1000
    assert result.msgs == 1000 * (subs or 1)
    assert result.bytes == result.msgs * plan.size
    assert (result.delivered is None) == (subs == 0)


def test_nats_publishers_wait_for_the_slowest_subscriber(nats: Address, uniq: str) -> None:
    plan = NatsFlowPlan(address=nats, msgs=500, subs=2, size=300, ahead_bytes=1000, subject=uniq)
    assert run_nats_flow(plan).msgs == 1000


def test_nats_queue_group_shares(originals: dict[str, Address], uniq: str) -> None:
    if not originals:
        pytest.skip("nats-server not on PATH")
    plan = NatsFlowPlan(
        address=originals["nats"], msgs=3000, subs=3, pubs=2, group="g", subject=uniq
    )
    assert run_nats_flow(plan).msgs == 3000


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("to_one", [False, True])
@pytest.mark.parametrize("headers", [0, 3])
def test_nats_varied_messages_arrive_whole(
    nats: Address, uniq: str, to_one: bool, headers: int, by_name: bool
) -> None:
    plan = NatsFlowPlan(
        address=nats,
        msgs=700,
        pubs=3,
        subs=2,
        subjects=50,
        size=(8, 90),
        headers=headers,
        to_one=to_one,
        by_name=by_name,
        subject=uniq,
    )
    result = run_nats_flow(plan)
    copies = 1 if to_one else 2
    assert result.msgs == 700 * copies
    assert result.published.bytes > 700 * 8
    if headers == 0:
        assert result.published.bytes < 700 * 90
        assert result.bytes == result.published.bytes * copies
    else:
        assert result.bytes > result.published.bytes * copies


def test_nats_neighbouring_lines_differ(fakes: SimpleNamespace) -> None:
    for plan in ({"subjects": 3}, {"size": (1, 2)}, {"size": (1, 9), "headers": 1}):
        fake = fakes.Nats()
        with fakes.Server(fake.serve) as address:
            run_nats_flow(NatsFlowPlan(address=address, msgs=900, pubs=2, **plan))
        one, other = fake.lines.values()
        for lines in (one, other):
            assert all(line != after for line, after in itertools.pairwise(lines))
        assert one != other or plan == {"size": (1, 2)}  # each begins at a place of its own


def test_nats_to_one_needs_a_subject_for_each() -> None:
    plan = NatsFlowPlan(address=("127.0.0.1", 1), subs=3, subjects=2, to_one=True)
    with pytest.raises(LoadError, match="a subject of its own"):
        run_nats_flow(plan)


def test_nats_timed_run_ends_with_whole_messages(nats: Address, uniq: str) -> None:
    seen: list[tuple[int, int]] = []
    plan = NatsFlowPlan(address=nats, seconds=0.3, subs=1, size=5000, subject=uniq)
    result = run_nats_flow(plan, lambda published, received: seen.append((published, received)))
    assert result.published.msgs == result.msgs > 0
    assert seen == sorted(seen)
    assert seen


def test_pings_are_answered_between_messages(fakes: SimpleNamespace) -> None:
    fake = fakes.Nats()
    with fakes.Server(fake.serve) as address:
        # Larger than a socket buffer: publishers are stopped inside of messages.
        run_nats_flow(NatsFlowPlan(address=address, msgs=300, pubs=2, subs=1, size=200_000))
        assert fake.pongs > 0


@pytest.mark.parametrize("in_flight", [1, 7])
@pytest.mark.parametrize("spin", [False, True])
def test_nats_request_reply(nats: Address, uniq: str, in_flight: int, spin: bool) -> None:
    result = run_nats_request(
        NatsRequestPlan(address=nats, msgs=200, in_flight=in_flight, spin=spin, subject=uniq)
    )
    assert result.msgs == 200
    assert result.latency_us is not None
    assert list(result.latency_us) == ["p50", "p90", "p99", "p99.9", "max"]
    assert 0 < result.latency_us["p50"] <= result.latency_us["p99"] <= result.latency_us["max"]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_nats_many_clients_request(nats: Address, uniq: str, in_flight: int) -> None:
    plan = NatsRequestPlan(
        address=nats,
        msgs=500,
        clients=20,
        in_flight=in_flight,
        subjects=7,
        size=(1, 40),
        subject=uniq,
    )
    result = run_nats_request(plan)
    assert result.msgs == result.published.msgs == 500
    assert 500 < result.bytes < 500 * 40
    assert result.latency_us is not None
    assert 0 < result.latency_us["p50"] <= result.latency_us["p99"]


def test_nats_fewer_requests_than_clients(nats: Address, uniq: str) -> None:
    plan = NatsRequestPlan(address=nats, msgs=3, clients=5, in_flight=2, subject=uniq)
    assert run_nats_request(plan).msgs == 3


@pytest.mark.parametrize(("batch", "pubs", "subs"), [(1, 1, 1), (1, 3, 2), (20, 2, 2), (20, 1, 0)])
def test_nsq_everything_is_received_and_finished(
    nsq: Address, uniq: str, batch: int, pubs: int, subs: int
) -> None:
    plan = NsqFlowPlan(
        address=nsq, msgs=1000, batch=batch, pubs=pubs, subs=subs, window=5, rdy=50, topic=uniq
    )
    result = run_nsq_flow(plan)
    assert result.published.msgs == result.msgs == 1000
    assert result.redelivered == 0


@pytest.mark.parametrize("batch", [1, 9])
def test_nsq_every_channel_of_every_topic_receives(nsq: Address, uniq: str, batch: int) -> None:
    plan = NsqFlowPlan(
        address=nsq,
        msgs=900,
        batch=batch,
        pubs=2,
        topics=3,
        channels=2,
        subs=2,
        size=(1, 300),
        window=4,
        topic=uniq,
    )
    result = run_nsq_flow(plan)
    assert (result.published.msgs, result.msgs) == (900, 1800)
    assert 900 < result.published.bytes < 900 * 300
    assert result.bytes == 2 * result.published.bytes


def test_nsq_neighbouring_commands_differ(fakes: SimpleNamespace) -> None:
    for plan in ({"topics": 3}, {"size": (1, 2)}, {"size": (8, 10), "window": 1}):
        fake = fakes.Nsq()
        with fakes.Server(fake.serve) as address:
            run_nsq_flow(NsqFlowPlan(address=address, msgs=900, pubs=2, **plan))
        one, other = fake.commands.values()
        for commands in (one, other):
            assert all(command != after for command, after in itertools.pairwise(commands))
        assert one != other or plan == {"size": (1, 2)}


def test_nsq_window_of_one_measures_until_ok_and_delivery(nsq: Address, uniq: str) -> None:
    plan = NsqFlowPlan(address=nsq, msgs=60, window=1, pubs=3, size=(8, 50), topic=uniq)
    result = run_nsq_flow(plan)
    assert result.msgs == 60
    for latency in (result.latency_us, result.ack_latency_us):
        assert latency is not None
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    alone = run_nsq_flow(NsqFlowPlan(address=nsq, msgs=60, window=1, subs=0))
    assert alone.latency_us is None
    assert alone.ack_latency_us is not None
    assert run_nsq_flow(NsqFlowPlan(address=nsq, msgs=60)).ack_latency_us is None


def test_nsq_round_trip_has_one_message_under_way(fakes: SimpleNamespace) -> None:
    fake = fakes.Nsq()
    with fakes.Server(fake.serve) as address:
        plan = NsqFlowPlan(address=address, msgs=80, channels=2, size=(8, 50), round_trip=True)
        result = run_nsq_flow(plan)
    assert result.msgs == 160
    assert result.latency_us is not None
    assert fake.waiting_max == 2  # one on each channel
    assert fake.rdy
    assert set(fake.rdy.values()) == {1}


def test_nsq_fins_are_taken_before_the_run_is_over(fakes: SimpleNamespace) -> None:
    fake = fakes.Nsq("repeat")
    with fakes.Server(fake.serve) as address:
        result = run_nsq_flow(NsqFlowPlan(address=address, msgs=300, rdy=10))
        assert result.msgs == 300
        assert result.redelivered > 0
        assert fake.fins == 300 + result.redelivered
        assert not fake.in_flight
        assert fake.outstanding_max <= 10
        assert fake.nops > 0


def test_nsq_consumers_catch_up(nsq: Address, uniq: str) -> None:
    sock, _ = dial_nsq(nsq, (uniq, "bench"), 0)
    sock.close()  # the channel stays
    run_nsq_flow(NsqFlowPlan(address=nsq, msgs=600, subs=0, topic=uniq, size=100))
    plan = NsqFlowPlan(address=nsq, msgs=600, pubs=0, subs=1, topic=uniq)
    result = run_nsq_flow(plan)
    assert (result.scenario, result.msgs, result.bytes) == ("nsq sub", 600, 60_000)
    assert result.published.msgs == 0


def test_nsq_rounds_up_to_whole_batches(nsq: Address, uniq: str) -> None:
    assert run_nsq_flow(NsqFlowPlan(address=nsq, msgs=101, batch=10, topic=uniq)).msgs == 110


def test_nsq_timed_run(nsq: Address, uniq: str) -> None:
    result = run_nsq_flow(NsqFlowPlan(address=nsq, seconds=0.2, batch=4, size=3000, topic=uniq))
    assert result.published.msgs == result.msgs > 0


def test_nsq_fixed_rate_measures_delivery(nsq: Address, uniq: str) -> None:
    plan = NsqFlowPlan(address=nsq, msgs=100, rate=1000, pubs=2, topic=uniq, size=8)
    result = run_nsq_flow(plan)
    assert result.msgs == 100
    assert result.published.seconds >= 0.099
    assert result.latency_us is not None
    assert result.latency_us["p50"] > 0


# What goes wrong.


@pytest.mark.parametrize(
    ("breakage", "reason"),
    [
        ("error", "refused publisher 1: -ERR 'Slow down'"),
        ("close", "closed the connection of publisher 1"),
        ("garbage", "unexpected answer to publisher 1"),
        ("twice", "subscriber 1 received more messages"),
    ],
)
def test_nats_run_says_why_it_failed(fakes: SimpleNamespace, breakage: str, reason: str) -> None:
    with (
        fakes.Server(fakes.Nats(breakage).serve) as address,
        pytest.raises(LoadError, match=reason),
    ):
        run_nats_flow(NatsFlowPlan(address=address, msgs=500, subs=1))


def test_nsq_run_says_why_it_failed(fakes: SimpleNamespace) -> None:
    with (
        fakes.Server(fakes.Nsq("error").serve) as address,
        pytest.raises(LoadError, match="refused publisher 1: E_BAD_TOPIC no such luck"),
    ):
        run_nsq_flow(NsqFlowPlan(address=address, msgs=10))


def test_a_run_that_does_not_move_is_given_up(
    fakes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.3)
    with (
        fakes.Server(fakes.Nats("silence").serve) as address,
        pytest.raises(LoadError, match=r"no progress .*10 messages sent, 0 received"),
    ):
        run_nats_flow(NatsFlowPlan(address=address, msgs=10, subs=1))


def test_wrong_listener_and_closed_port_are_reported(fakes: SimpleNamespace) -> None:
    async def nats_listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {}\r\n")
        await reader.read()

    with (
        fakes.Server(nats_listener) as address,
        pytest.raises(LoadError, match="is not an NSQ server"),
    ):
        run_nsq_flow(NsqFlowPlan(address=address, msgs=10))
    with pytest.raises(LoadError, match="cannot connect"):
        run_nats_flow(NatsFlowPlan(address=address, msgs=10))


@pytest.mark.parametrize(
    "arguments",
    [["nats", "pub"], ["nats", "pubsub", "--subs", "2"], ["nats", "request"]],
    ids=lambda arguments: arguments[1],
)
def test_command_prints_json_for_nats(nats: Address, arguments: list[str]) -> None:
    found = run_command([*arguments, "--msgs", "100", "--json"], nats)
    assert found["scenario"] == " ".join(arguments[:2])
    assert found["msgs"] == 100 * (2 if "--subs" in arguments else 1)
    assert found["seconds"] > 0
    assert found["msgs_per_second"] > 0


@pytest.mark.parametrize(
    "arguments",
    [["nsq", "pub", "--batch", "10"], ["nsq", "pubfin", "--subs", "2", "--rdy", "9"]],
    ids=lambda arguments: arguments[1],
)
def test_command_prints_json_for_nsq(nsq: Address, arguments: list[str]) -> None:
    found = run_command([*arguments, "--msgs", "100", "--size", "10", "--json"], nsq)
    assert found["scenario"] == " ".join(arguments[:2])
    assert (found["msgs"], found["bytes"]) == (100, 1000)


def test_command_shows_how_busy_the_generator_is(
    fakes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fakes.Server(fakes.Nats().serve) as (host, port):
        arguments = ["nats", "pub", "--msgs", "100", "--server", f"{host}:{port}"]
        assert "generator busy" in CliRunner().invoke(bench, arguments).stdout
        monkeypatch.setattr(limits, "BUSY_MAX", -1.0)
        assert "may be what limits the result" in CliRunner().invoke(bench, arguments).stdout
        found = run_command([*arguments[:-2], "--json"], (host, port))
        assert found["generator_busy"] >= 0


def test_command_takes_varied_traffic(fakes: SimpleNamespace) -> None:
    varied = ["--subjects", "8", "--size", "10-20"]
    with fakes.Server(fakes.Nats().serve) as address:
        to_one = ["nats", "pubsub", *varied, "--subs", "2", "--to-one", "--headers", "1"]
        assert run_command([*to_one, "--msgs", "100", "--json"], address)["msgs"] == 100
        request = ["nats", "request", *varied, "--clients", "3", "--msgs", "100", "--json"]
        assert 1000 <= run_command(request, address)["bytes"] <= 2000
    with fakes.Server(fakes.Nsq().serve) as address:
        topics = ["nsq", "pubfin", "--topics", "3", "--channels", "2", "--size", "10-20"]
        assert run_command([*topics, "--msgs", "100", "--json"], address)["msgs"] == 200
        trip = ["nsq", "pubfin", "--round-trip", "--msgs", "20", "--json"]
        assert run_command(trip, address)["ack_latency_us"]["p50"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["nats", "pub", "--size", "9-8"],
        ["nats", "pub", "--size", "-1"],
        ["nats", "pub", "--size", "1-2-3"],
        ["nats", "pub", "--size", "99999999999"],
        ["nats", "pubsub", "--to-one", "--subs", "2"],
        ["nats", "pubsub", "--to-one", "--queue", "g"],
        ["nsq", "pubfin", "--rate", "5", "--batch", "2"],
        ["nsq", "pubfin", "--rate", "5", "--round-trip"],
        ["nsq", "pubfin", "--rate", "5", "--size", "7-20"],
        ["nsq", "pubfin", "--round-trip", "--pubs", "2"],
        ["nsq", "pubfin", "--round-trip", "--window", "2"],
    ],
    ids=" ".join,
)
def test_command_refuses(arguments: list[str]) -> None:
    assert CliRunner().invoke(bench, arguments).exit_code == 2


def run_command(arguments: list[str], address: Address) -> dict[str, Any]:
    done = CliRunner().invoke(bench, [*arguments, "--server", "{}:{}".format(*address)])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_command_fails_plainly(fakes: SimpleNamespace) -> None:
    with fakes.Server(fakes.Nats("error").serve) as (host, port):
        done = CliRunner().invoke(bench, ["nats", "pub", "--server", f"{host}:{port}"])
    assert done.exit_code == 1
    assert "-ERR 'Slow down'" in done.output
    assert CliRunner().invoke(bench, ["nats", "pub", "--server", "nowhere"]).exit_code == 2
