"""The series of JetStream: our own, and those of prometheus-nats-exporter with `-jsz=all`.

Dashboards for the exporter work with this server: it has `jetstream_stream_total_messages` and the
other series of the exporter, with their labels. The server itself is the leader of every stream.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from broker.base.metrics import Block, Position, Series, families
from broker.base.units import SECOND
from broker.protocols.jetstream import limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from broker.protocols.jetstream.account import JetStreamAccount
    from broker.protocols.jetstream.consumers.consumer import Consumer
    from broker.protocols.jetstream.context import JetStreamContext
    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.jetstream.structs import StreamSourceInfo

_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily


class ConsumerNumbers(NamedTuple):
    """The values of one consumer."""

    name: str
    description: str
    delivered_consumer_seq: int
    delivered_seq: int
    delivered_ns: int  # wall clock; 0 = never
    acked_consumer_seq: int
    acked_seq: int
    acked_ns: int
    ack_pending: int
    redelivered: int
    waiting: int
    pending: int


class OriginNumbers(NamedTuple):
    """The values of one origin of a mirror or of a stream with sources."""

    name: str
    is_mirror: bool
    lag: int
    active_ns: int  # since the last contact; -1 = never


class StreamNumbers(NamedTuple):
    """The values of one stream."""

    name: str
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    subjects: int
    stored: int  # since the start, like the next two
    duplicates: int
    refused: int
    lost: int
    max_msgs: int
    max_bytes: int
    consumer_count: int
    consumers: list[ConsumerNumbers]
    origins: list[OriginNumbers]


class AccountNumbers(NamedTuple):
    """The values of one account."""

    name: str
    memory: int
    storage: int
    max_memory: int  # -1 = no limit of its own
    max_storage: int
    api_total: int
    api_errors: int
    offline: int
    streams: list[StreamNumbers]

    @property
    def stream_count(self) -> int:
        """The number of its streams that are served."""
        return len(self.streams)


class JetStreamNumbers(NamedTuple):
    """The values for one scrape, copied on the loop's thread."""

    server_id: str
    server_name: str
    domain: str
    max_memory: int
    max_storage: int
    accounts: list[AccountNumbers]


# --- on the loop's thread


def jetstream_numbers(
    context: JetStreamContext, accounts: Mapping[str, JetStreamAccount]
) -> JetStreamNumbers:
    """Copy the current values."""
    return JetStreamNumbers(
        context.nats.server_id,
        context.server_name,
        context.domain,
        context.max_memory,
        context.max_storage,
        [_account(accounts[name]) for name in sorted(accounts) if accounts[name].enabled],
    )


def _account(account: JetStreamAccount) -> AccountNumbers:
    return AccountNumbers(
        account.name,
        account.used("memory"),
        account.used("file"),
        account.limits.max_memory,
        account.limits.max_storage,
        account.api_total,
        account.api_errors,
        len(account.offline),
        [_stream(account, stream) for stream in account.sorted_streams()],
    )


def _stream(account: JetStreamAccount, stream: Stream) -> StreamNumbers:
    store, config = stream.store, stream.config
    mirror, sources = account.origins.mirror(stream), account.origins.sources(stream)
    origins = [_origin(mirror, is_mirror=True)] if mirror is not None else []
    return StreamNumbers(
        stream.name,
        store.messages,
        store.bytes,
        store.first_seq if store.last_seq else 0,
        store.last_seq,
        store.subjects.size,
        stream.stored,
        stream.duplicates,
        stream.refused,
        store.lost_messages,
        config.max_msgs,
        config.max_bytes,
        stream.consumer_count,
        [_consumer(stream.consumers[name]) for name in sorted(stream.consumers)],
        origins + [_origin(source, is_mirror=False) for source in sources or ()],
    )


def _consumer(consumer: Consumer) -> ConsumerNumbers:
    return ConsumerNumbers(consumer.name, consumer.config.description, *consumer.numbers())


def _origin(info: StreamSourceInfo, *, is_mirror: bool) -> OriginNumbers:
    return OriginNumbers(info.name, is_mirror, info.lag, info.active)


# --- on any thread

_ACCOUNT: Final = (
    Series(_GAUGE, "jetstream_streams", "stream_count", "Streams that are served."),
    Series(_GAUGE, "jetstream_offline_streams", "offline", "Streams that cannot be opened."),
    Series(_GAUGE, "jetstream_memory_bytes", "memory", "Bytes of its streams in memory."),
    Series(_GAUGE, "jetstream_storage_bytes", "storage", "Bytes of its streams in files."),
    Series(_COUNTER, "jetstream_api_requests", "api_total", "Requests of the API answered."),
    Series(_COUNTER, "jetstream_api_errors", "api_errors", "Requests answered with an error."),
)
_STREAM: Final = (
    Series(_GAUGE, "jetstream_stream_messages", "messages", "Messages in the stream."),
    Series(_GAUGE, "jetstream_stream_bytes", "bytes", "Bytes of these messages."),
    Series(_GAUGE, "jetstream_stream_first_seq", "first_seq", "The oldest message."),
    Series(_GAUGE, "jetstream_stream_last_seq", "last_seq", "The newest message."),
    Series(_GAUGE, "jetstream_stream_subjects", "subjects", "Distinct subjects of its messages."),
    Series(_GAUGE, "jetstream_stream_consumers", "consumer_count", "Consumers of the stream."),
    Series(_COUNTER, "jetstream_stream_stored", "stored", "Messages stored since the start."),
    Series(_COUNTER, "jetstream_stream_duplicates", "duplicates", "Messages with a known ID."),
    Series(_COUNTER, "jetstream_stream_refused", "refused", "Messages answered with an error."),
    Series(_GAUGE, "jetstream_stream_lost_messages", "lost", "Messages that cannot be read."),
)
_CONSUMER: Final = (
    Series(_GAUGE, "jetstream_consumer_pending", "pending", "Messages not delivered yet."),
    Series(_GAUGE, "jetstream_consumer_ack_pending", "ack_pending", "Messages not acked yet."),
    Series(_GAUGE, "jetstream_consumer_redelivered", "redelivered", "Of these, repeated ones."),
    Series(_GAUGE, "jetstream_consumer_waiting", "waiting", "Pull requests that wait."),
    Series(
        _COUNTER, "jetstream_consumer_delivered", "delivered_consumer_seq",
        "Messages delivered, repeated ones included.",
    ),
    Series(_GAUGE, "jetstream_consumer_ack_floor", "acked_seq", "All up to it are acked."),
)  # fmt: skip


def own_block(numbers: JetStreamNumbers) -> Block:
    """The series under our names."""
    return Block(Position.TOPICS, partial(_own, numbers))


def _own(numbers: JetStreamNumbers) -> Iterator[Metric]:
    accounts = numbers.accounts
    streams = [(account, stream) for account in accounts for stream in account.streams]
    yield from families(_ACCOUNT, ("account",), [((one.name,), one) for one in accounts])
    yield from families(
        _STREAM,
        ("account", "stream"),
        [((account.name, stream.name), stream) for account, stream in streams],
    )
    yield from families(
        _CONSUMER,
        ("account", "stream", "consumer"),
        [
            ((account.name, stream.name, consumer.name), consumer)
            for account, stream in streams
            for consumer in stream.consumers
        ],
    )
    lag = GaugeMetricFamily(
        "twinwire_jetstream_origin_lag",
        "Messages of the origin that a mirror, or a stream with sources, has not copied.",
        labels=("account", "stream", "origin"),
    )
    for account, stream in streams:
        for origin in stream.origins:
            lag.add_metric((account.name, stream.name, origin.name), origin.lag)
    yield lag


_SERVER_LABELS: Final = (
    "server_id", "server_name", "cluster", "domain", "meta_leader", "is_meta_leader",
)  # fmt: skip
_ACCOUNT_LABELS: Final = (*_SERVER_LABELS, "account", "account_name", "account_id")
_STREAM_LABELS: Final = (
    *_ACCOUNT_LABELS, "stream_name", "stream_leader", "is_stream_leader", "stream_raft_group",
)  # fmt: skip
_CONSUMER_LABELS: Final = (
    *_STREAM_LABELS, "consumer_name", "consumer_leader", "is_consumer_leader", "consumer_desc",
)  # fmt: skip
_EXPORTED_ACCOUNT: Final = {
    "max_memory": "max_memory",
    "max_storage": "max_storage",
    "memory_used": "memory",
    "storage_used": "storage",
}
_EXPORTED_STREAM: Final = {
    "total_messages": "messages",
    "total_bytes": "bytes",
    "first_seq": "first_seq",
    "last_seq": "last_seq",
    "consumer_count": "consumer_count",
    "subject_count": "subjects",
    "limit_messages": "max_msgs",
    "limit_bytes": "max_bytes",
}
_EXPORTED_CONSUMER: Final = {
    "delivered_consumer_seq": "delivered_consumer_seq",
    "delivered_stream_seq": "delivered_seq",
    "num_ack_pending": "ack_pending",
    "num_redelivered": "redelivered",
    "num_waiting": "waiting",
    "num_pending": "pending",
    "ack_floor_stream_seq": "acked_seq",
    "ack_floor_consumer_seq": "acked_consumer_seq",
}
_SINCE: Final = {"last_delivery_seconds": "delivered_ns", "last_ack_seconds": "acked_ns"}


def exported_block(numbers: JetStreamNumbers) -> Block:
    """The series under the exporter's names."""
    return Block(Position.EXPORTED, partial(_exported, numbers))


def _gauge(name: str, labels: Sequence[str], rows: Sequence[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(f"jetstream_{name}", name.replace("_", " "), labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _exported(numbers: JetStreamNumbers) -> Iterator[Metric]:
    me = (numbers.server_id, numbers.server_name, "", numbers.domain, "", "true")
    accounts: list[tuple[tuple[str, ...], AccountNumbers]] = [
        ((*me, one.name, one.name, one.name), one) for one in numbers.accounts
    ]
    streams: _LabelledStreams = [
        ((*where, one.name, numbers.server_name, "true", ""), one)
        for where, account in accounts
        for one in account.streams
    ]
    totals = {
        "jetstream_disabled": 0,
        "total_streams": len(streams),
        "total_consumers": sum(len(stream.consumers) for _, stream in streams),
        "total_messages": sum(stream.messages for _, stream in streams),
        "total_message_bytes": sum(stream.bytes for _, stream in streams),
        "max_memory": numbers.max_memory,
        "max_storage": numbers.max_storage,
    }
    for name, value in totals.items():
        yield _gauge(f"server_{name}", _SERVER_LABELS, [(me, value)])
    for name, field in _EXPORTED_ACCOUNT.items():
        # As in /jsz, which the exporter reads: -1 (no limit) is an unsigned number.
        rows = [(where, float(getattr(one, field) % 2**64)) for where, one in accounts]
        yield _gauge(f"account_{name}", _ACCOUNT_LABELS, rows)
    if len(streams) + totals["total_consumers"] > limits.JS_EXPORTED_MAX:
        return
    for name, field in _EXPORTED_STREAM.items():
        values = [(where, getattr(one, field)) for where, one in streams]
        yield _gauge(f"stream_{name}", _STREAM_LABELS, values)
    yield from _exported_origins(streams)
    yield from _exported_consumers(numbers, streams)


_LabelledStreams = list[tuple[tuple[str, ...], StreamNumbers]]  # each with its label values


def _exported_origins(streams: _LabelledStreams) -> Iterator[Metric]:
    for kind, is_mirror in (("source", False), ("mirror", True)):
        labels = (*_STREAM_LABELS, f"{kind}_name", f"{kind}_api", f"{kind}_deliver")
        rows = [
            ((*where, origin.name, "", ""), origin)
            for where, stream in streams
            for origin in stream.origins
            if origin.is_mirror is is_mirror
        ]
        yield _gauge(f"stream_{kind}_lag", labels, [(where, one.lag) for where, one in rows])
        yield _gauge(
            f"stream_{kind}_active_duration_ns",
            labels,
            [(where, one.active_ns) for where, one in rows],
        )


def _exported_consumers(numbers: JetStreamNumbers, streams: _LabelledStreams) -> Iterator[Metric]:
    consumers = [
        ((*where, one.name, numbers.server_name, "true", one.description), one)
        for where, stream in streams
        for one in stream.consumers
    ]
    for name, field in _EXPORTED_CONSUMER.items():
        rows = [(where, getattr(one, field)) for where, one in consumers]
        yield _gauge(f"consumer_{name}", _CONSUMER_LABELS, rows)
    now_ns = time.time_ns()
    for name, field in _SINCE.items():
        rows = [
            (where, (now_ns - getattr(one, field)) / SECOND)
            for where, one in consumers
            if getattr(one, field)
        ]
        yield _gauge(f"consumer_{name}", _CONSUMER_LABELS, rows)
