"""`twinwire bench`: measures NATS, NSQ, NATS Streaming and JetStream servers.

The load generator is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson

from broker.bench import limits

if TYPE_CHECKING:
    from broker.bench.scenarios import (
        JetStreamConsumePlan,
        JetStreamPublishPlan,
        NatsFlowPlan,
        NatsRequestPlan,
        NsqFlowPlan,
        Progress,
        Result,
        StanFlowPlan,
    )

    P = TypeVar(
        "P",
        JetStreamConsumePlan,
        JetStreamPublishPlan,
        NatsFlowPlan,
        NatsRequestPlan,
        NsqFlowPlan,
        StanFlowPlan,
    )

Command = Callable[..., None]


class Address(click.ParamType[tuple[str, int]]):
    """A parameter HOST:PORT."""

    name = "HOST:PORT"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        host, colon, port = value.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            self.fail(f"invalid address {value!r}: expected HOST:PORT", param, ctx)
        return host.strip("[]"), int(port)


class SizeRange(click.ParamType["int | tuple[int, int]"]):
    """A parameter N or MIN-MAX."""

    name = "N|MIN-MAX"

    def convert(
        self,
        value: str | int,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int | tuple[int, int]:
        words = str(value).split("-")
        if len(words) > 2 or not all(word.isdecimal() for word in words):
            self.fail(f"invalid size {value!r}: expected N or MIN-MAX", param, ctx)
        low, high = int(words[0]), int(words[-1])
        if not low <= high <= limits.SIZE_BYTES_MAX:
            self.fail(f"sizes go from MIN to MAX, at most {limits.SIZE_BYTES_MAX}", param, ctx)
        return (low, high) if low < high else low


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _count(name: str, default: int, text: str, least: int = 1) -> Callable[[Command], Command]:
    return click.option(name, type=click.IntRange(least), default=default, help=text)


def _common(port: int, size: int, msgs: int, *, timed: bool = True) -> Callable[[Command], Command]:
    duration = click.option(
        "--duration",
        "seconds",
        type=click.FloatRange(0, min_open=True),
        help="Publish for this many seconds instead.",
    )
    return _options(
        click.option(
            "--server", "address", type=Address(), default=f"127.0.0.1:{port}", show_default=True
        ),
        click.option(
            "--size",
            type=SizeRange(),
            default=size,
            show_default=True,
            help="Size of a message body, in bytes; a range is used uniformly.",
        ),
        click.option(
            "--msgs",
            type=click.IntRange(1),
            default=msgs,
            show_default=True,
            help="Number of messages to publish, all publishers together.",
        ),
        *((duration,) if timed else ()),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )


_pubs = _count("--pubs", 1, "Publisher connections.")
_subject = click.option("--subject", default="bench", show_default=True)
_subjects = _count(
    "--subjects", 1, "Publish to SUBJECT.0 ... SUBJECT.N-1, in an order that looks random."
)
_headers = click.option(
    "--headers",
    type=click.IntRange(0, limits.HEADERS_MAX),
    default=0,
    help="Header lines of each message; their bytes count as part of the message.",
)
_batch = _count("--batch", 1, "Messages per MPUB; 1 publishes with PUB.")
_window = click.option(
    "--window",
    type=click.IntRange(1),
    help=f"Commands per publisher that wait for an answer. [default: {limits.PUB_WINDOW} PUBs or"
    f" {limits.MPUB_WINDOW} MPUBs]",
)
_topics = _count("--topics", 1, "Publish to TOPIC_0 ... TOPIC_N-1, in an order that looks random.")
_topic = click.option(
    "--topic", help="Name to use; it is not deleted. [default: a new name for each run]"
)


class _Meter:
    """Live counts on one line of the terminal."""

    def __init__(self) -> None:
        self.shown = False

    def __call__(self, published: int, received: int) -> None:
        self.shown = True
        click.echo(f"\r{published:,} published, {received:,} received ", nl=False, err=True)

    def end(self) -> None:
        if self.shown:
            click.echo("", err=True)


def _text(result: Result, *, timed: bool = True) -> str:
    """`timed`: the command has --duration."""
    lines = [result.scenario]
    for name, rate in (("published", result.published), ("delivered", result.delivered)):
        if rate is not None and rate.msgs:
            lines.append(
                f"  {name}  {rate.msgs:>14,} msgs  {rate.seconds:9.3f} s"
                f"  {rate.msgs_per_second:>14,.0f} msgs/s"
                f"  {rate.bytes / rate.seconds / 1e6:10,.1f} MB/s"
            )
    rates = [rate for rate in (result.published, result.delivered) if rate is not None]
    if rates and max(rate.seconds for rate in rates) < limits.SECONDS_MIN:
        more = "give more --msgs" + ", or --duration 5" * timed
        lines.append(f"  too short to compare: {more}")
    if result.refused:
        lines.append(f"  refused {result.refused:,} msgs")
    if result.redelivered:
        lines.append(f"  redelivered {result.redelivered:,} msgs")
    latencies = (("latency us", result.latency_us), ("until OK us", result.ack_latency_us))
    for title, latency in latencies:
        if latency is not None:
            values = "  ".join(f"{name} {value:,.1f}" for name, value in latency.items())
            lines.append(f"  {title:<11}  {values}")
    limit = ": it may be what limits the result" if result.generator_busy > limits.BUSY_MAX else ""
    lines.append(f"  generator busy {result.generator_busy:.0%} of a core{limit}")
    return "\n".join(lines)


def _given(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with the given options; omitted ones keep its defaults."""
    return {name: value for name, value in plan.items() if value is not None}


def _run(run: Callable[[P, Progress | None], Result], plan: P, as_json: bool) -> None:
    from broker.bench.loadgen import LoadError

    meter = _Meter() if sys.stderr.isatty() else None
    try:
        result = run(plan, meter)
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    finally:
        if meter is not None:
            meter.end()
    if as_json:
        found = {
            "server": "{}:{}".format(*plan.address),
            **asdict(result),
            "generator_busy": round(result.generator_busy, 3),
        }
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(_text(result, timed=hasattr(plan, "seconds")))


@click.group()
def bench() -> None:
    """Measure a NATS, NSQ or NATS Streaming server with a compiled load generator."""


@bench.group()
def nats() -> None:
    """Loads for a NATS server."""


@bench.group()
def nsq() -> None:
    """Loads for nsqd."""


@bench.group()
def stan() -> None:
    """Loads for NATS Streaming."""


@bench.group()
def js() -> None:
    """Loads for JetStream."""


@nats.command("pub")
@_common(limits.NATS_PORT, limits.NATS_SIZE_BYTES, limits.MESSAGES)
@_options(_pubs, _subject, _subjects, _headers)
def nats_pub(as_json: bool, **plan: Any) -> None:
    """Publish only; the run ends when the server answers a PING after the last message."""
    from broker.bench.scenarios import NatsFlowPlan, run_nats_flow

    _run(run_nats_flow, NatsFlowPlan(**_given(plan)), as_json)


@nats.command("pubsub")
@_common(limits.NATS_PORT, limits.NATS_SIZE_BYTES, limits.MESSAGES)
@_options(_pubs, _subject, _subjects, _headers)
@_count("--subs", 1, "Subscriber connections; each receives every message.")
@click.option("--queue", "group", help="Let subscribers share the messages in this group.")
@click.option(
    "--to-one",
    is_flag=True,
    help="Send each message to one subscriber: each subscribes to a part of the subjects.",
)
@click.option(
    "--by-name",
    is_flag=True,
    help="Subscribe to every subject by its name instead of to a wildcard.",
)
@click.option(
    "--ahead",
    "ahead_bytes",
    type=click.IntRange(1),
    default=limits.AHEAD_BYTES,
    show_default=True,
    help="Bytes that publishers may be ahead of the slowest subscriber.",
)
def nats_pubsub(as_json: bool, **plan: Any) -> None:
    """Publish and receive; the run ends when each subscriber has every message."""
    from broker.bench.scenarios import NatsFlowPlan, run_nats_flow

    if plan["to_one"] and (plan["group"] or plan["subjects"] < plan["subs"]):
        raise click.UsageError("--to-one needs a subject for each subscriber, and no --queue")
    _run(run_nats_flow, NatsFlowPlan(**_given(plan)), as_json)


@nats.command("request")
@_common(limits.NATS_PORT, limits.NATS_SIZE_BYTES, limits.REQUESTS)
@_options(_subject, _subjects)
@_count("--clients", 1, "Connections that send requests.")
@_count("--in-flight", limits.REQUESTS_IN_FLIGHT, "Requests of a client that wait for a reply.")
@click.option(
    "--spin", is_flag=True, help="Poll without sleeping: steadier results, but it occupies a core."
)
def nats_request(as_json: bool, **plan: Any) -> None:
    """Send requests to a responder and report the latency percentiles of all clients together."""
    from broker.bench.scenarios import NatsRequestPlan, run_nats_request

    _run(run_nats_request, NatsRequestPlan(**_given(plan)), as_json)


@nsq.command("pub")
@_common(limits.NSQ_PORT, limits.NSQ_SIZE_BYTES, limits.MESSAGES)
@_options(_pubs, _batch, _window, _topic, _topics)
def nsq_pub(as_json: bool, **plan: Any) -> None:
    """Publish only; the run ends with the last OK. With --window 1, latencies until OK."""
    from broker.bench.scenarios import NsqFlowPlan, run_nsq_flow

    _run(run_nsq_flow, NsqFlowPlan(subs=0, **_given(plan)), as_json)


@nsq.command("sub")
@click.option(
    "--server",
    "address",
    type=Address(),
    default=f"127.0.0.1:{limits.NSQ_PORT}",
    show_default=True,
)
@click.option("--topic", required=True)
@click.option("--channel", default="bench", show_default=True)
@_count("--msgs", limits.MESSAGES, "Messages to receive, of those that wait.")
@_count("--subs", 1, "Consumer connections.")
@_count("--rdy", limits.RDY, "RDY of each consumer.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def nsq_sub(as_json: bool, **plan: Any) -> None:
    """Receive and FIN what waits on a channel; nothing is published."""
    from broker.bench.scenarios import NsqFlowPlan, run_nsq_flow

    _run(run_nsq_flow, NsqFlowPlan(pubs=0, **_given(plan)), as_json)


@nsq.command("pubfin")
@_common(limits.NSQ_PORT, limits.NSQ_SIZE_BYTES, limits.MESSAGES)
@_options(_pubs, _batch, _window, _topic, _topics)
@click.option("--channel", default="bench", show_default=True)
@_count("--channels", 1, "Channels of each topic: CHANNEL_0 ... CHANNEL_M-1.")
@_count("--subs", 1, "Consumer connections on each channel.")
@click.option(
    "--rdy",
    type=click.IntRange(1),
    help=f"RDY of each consumer. [default: {limits.RDY}, or 1 with --round-trip]",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1e9, min_open=True),
    help="Publish this many messages per second and report the time to delivery.",
)
@click.option(
    "--round-trip",
    is_flag=True,
    help="One message under way: the next PUB waits for the FIN of the last one.",
)
def nsq_pubfin(as_json: bool, **plan: Any) -> None:
    """Publish, receive and FIN; the run ends when the server has processed the last FIN.

    With --window 1 or --round-trip, latencies until OK and until delivery."""
    from broker.bench.scenarios import NsqFlowPlan, run_nsq_flow
    from broker.bench.traffic import bounds

    timed = "--rate" if plan["rate"] is not None else "--round-trip" if plan["round_trip"] else ""
    if plan["rate"] is not None and plan["round_trip"]:
        raise click.UsageError("--rate excludes --round-trip")
    if plan["round_trip"] and (plan["pubs"] != 1 or plan["window"] not in (None, 1)):
        raise click.UsageError("--round-trip takes one publisher and a window of one")
    if timed and plan["batch"] != 1:
        raise click.UsageError(f"{timed} needs single messages: omit --batch")
    if timed and bounds(plan["size"])[0] < limits.STAMP_BYTES:
        raise click.UsageError(f"{timed} needs bodies of {limits.STAMP_BYTES} bytes or more")
    _run(run_nsq_flow, NsqFlowPlan(**_given(plan)), as_json)


_channel = click.option(
    "--channel", help="Name to use; it is not deleted. [default: a new name for each run]"
)
_cluster = click.option("--cluster", default=limits.STAN_CLUSTER, show_default=True)
_pub_acks = _count(
    "--window", limits.STAN_WINDOW, "PubAcks that each publisher waits for at the same time."
)


@stan.command("pub")
@_common(limits.NATS_PORT, limits.STAN_SIZE_BYTES, limits.MESSAGES)
@_options(_pubs, _pub_acks, _channel, _cluster)
def stan_pub(as_json: bool, **plan: Any) -> None:
    """Publish only; the run ends with the last PubAck. Latency is from publish to PubAck."""
    from broker.bench.scenarios import StanFlowPlan, run_stan_flow

    _run(run_stan_flow, StanFlowPlan(**_given(plan)), as_json)


@stan.command("pubsub")
@_common(limits.NATS_PORT, limits.STAN_SIZE_BYTES, limits.MESSAGES)
@_options(_pubs, _pub_acks, _channel, _cluster)
@_count("--subs", 1, "Subscribers; each receives and acks every message.")
@_count(
    "--max-in-flight", limits.STAN_IN_FLIGHT, "Unacknowledged messages that a subscriber may have."
)
def stan_pubsub(as_json: bool, **plan: Any) -> None:
    """Publish, receive and ack; the run ends when the server has processed the last Ack."""
    from broker.bench.scenarios import StanFlowPlan, run_stan_flow

    _run(run_stan_flow, StanFlowPlan(**_given(plan)), as_json)


@js.command("pub")
@_common(limits.NATS_PORT, limits.JETSTREAM_SIZE_BYTES, limits.MESSAGES)
@_options(
    _pubs,
    _count(
        "--window",
        limits.JETSTREAM_WINDOW,
        "PubAcks that each publisher waits for at the same time.",
    ),
    _count("--subjects", 1, "Publish to STREAM.0 ... STREAM.N-1, in an order that looks random."),
    click.option(
        "--storage",
        type=click.Choice(["file", "memory"]),
        default="file",
        show_default=True,
        help="Storage of the stream that is made for the run.",
    ),
    click.option(
        "--stream",
        default="",
        help="A stream that exists; its name and the names below it must be among its subjects."
        " [default: a new one for each run, deleted at its end]",
    ),
)
def js_pub(as_json: bool, **plan: Any) -> None:
    """Publish only; the run ends with the last PubAck. Latency is from publish to PubAck."""
    from broker.bench.scenarios import JetStreamPublishPlan, run_jetstream_publish

    _run(run_jetstream_publish, JetStreamPublishPlan(**_given(plan)), as_json)


_stored = (
    _count("--subjects", 1, "Subjects of the messages: STREAM.0 ... STREAM.N-1."),
    click.option(
        "--storage",
        type=click.Choice(["file", "memory"]),
        default="file",
        show_default=True,
        help="Storage of the stream that is made for the run.",
    ),
    click.option(
        "--stream",
        default="",
        help="A stream that exists and has as many messages."
        " [default: a new one for each run, filled before it and deleted at its end]",
    ),
)


@js.command("consume")
@_common(limits.NATS_PORT, limits.JETSTREAM_SIZE_BYTES, limits.MESSAGES, timed=False)
@_options(
    click.option(
        "--last",
        is_flag=True,
        help="Only the last message of each subject, as watchers of key-value buckets read it.",
    ),
    *_stored,
)
def js_consume(as_json: bool, **plan: Any) -> None:
    """Receive the messages of a stream by an ordered consumer, with flow control."""
    from broker.bench.scenarios import JetStreamConsumePlan, run_jetstream_consume

    _run(run_jetstream_consume, JetStreamConsumePlan(**_given(plan)), as_json)


@js.command("fetch")
@_common(limits.NATS_PORT, limits.JETSTREAM_SIZE_BYTES, limits.MESSAGES, timed=False)
@_options(
    _count("--subs", 1, "Connections that share one consumer."),
    _count("--batch", limits.JETSTREAM_BATCH, "Messages of each request."),
    *_stored,
)
def js_fetch(as_json: bool, **plan: Any) -> None:
    """Request messages of a stream in batches and ack each; the run ends when the server has
    processed the last ack."""
    from broker.bench.scenarios import JetStreamConsumePlan, run_jetstream_consume

    _run(run_jetstream_consume, JetStreamConsumePlan(**_given(plan)), as_json)
