"""The series of topics and channels on /metrics: the same numbers as /stats shows."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from broker.base.metrics import Block, Position, Series, families
from broker.base.values import dataclass
from broker.protocols.nsq.topics import channels_of, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from broker.engine.engine import Engine
    from broker.engine.log.log import Log
    from broker.protocols.stream_topic import StreamTopic

_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily

_TOPIC: Final = (
    Series(_GAUGE, "topic_depth_messages", "depth", "Messages that no channel has yet."),
    Series(_COUNTER, "topic_messages", "message_count", "Messages published."),
    Series(_COUNTER, "topic_bytes", "message_bytes", "Bytes published."),
    Series(_GAUGE, "topic_paused", "paused", "1 when the topic is paused."),
)
_CHANNEL: Final = (
    Series(_GAUGE, "channel_depth_messages", "depth", "Messages waiting for a consumer."),
    Series(_GAUGE, "channel_in_flight_messages", "in_flight", "Messages sent, not finished."),
    Series(_GAUGE, "channel_deferred_messages", "deferred", "Messages that are not due yet."),
    Series(_COUNTER, "channel_messages", "message_count", "Messages that reached the channel."),
    Series(_COUNTER, "channel_requeues", "requeue_count", "Messages given back by consumers."),
    Series(_COUNTER, "channel_timeouts", "timeout_count", "Deliveries that expired."),
    Series(_COUNTER, "channel_dropped", "dropped_count", "Dropped by a full #ephemeral channel."),
    Series(_GAUGE, "channel_consumers", "consumers", "Connections subscribed now."),
    Series(_GAUGE, "channel_paused", "paused", "1 when the channel is paused."),
)


@dataclass(slots=True)
class ChannelStats:
    """One channel: a cursor of its topic's log. Fields that end in _count never decrease."""

    name: str
    depth: int = 0  # messages waiting; neither in flight nor deferred
    in_flight: int = 0  # sent, not yet finished
    deferred: int = 0  # not due yet
    message_count: int = 0  # messages that reached the channel, since start
    requeue_count: int = 0  # REQ, since start
    timeout_count: int = 0  # deliveries that expired, since start
    consumers: int = 0  # connections subscribed now
    paused: bool = False
    dropped_count: int = 0  # oldest messages of an #ephemeral channel that was full, since start


@dataclass(slots=True)
class TopicStats:
    """One topic: a log with its channels."""

    name: str
    depth: int = 0  # messages that no channel has received yet
    message_count: int = 0  # messages published, since start
    message_bytes: int = 0  # bytes of their bodies, since start
    channels: list[ChannelStats] = field(default_factory=list)
    paused: bool = False


def topic_stats(entry: Log) -> TopicStats:
    """One log and its channels; other cursors are left out, because they end with their clients."""
    return TopicStats(
        name=entry.name,
        depth=entry.depth,
        message_count=entry.message_count,
        message_bytes=entry.message_bytes,
        paused=entry.paused,
        channels=[
            ChannelStats(
                name=cursor.name,
                depth=cursor.depth,
                in_flight=cursor.in_flight_count,
                deferred=cursor.deferred_count,
                message_count=cursor.message_count,
                requeue_count=cursor.requeue_count,
                timeout_count=cursor.timeout_count,
                dropped_count=cursor.dropped_count,
                consumers=cursor.consumers,
                paused=cursor.paused,
            )
            for cursor in channels_of(entry)
        ],
    )


def stream_stats(topic: StreamTopic) -> TopicStats:
    """A topic that is a stream of JetStream, and its channels."""
    return TopicStats(
        name=topic.name,
        depth=topic.depth,
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        channels=[
            ChannelStats(
                name=channel.name,
                depth=channel.depth,
                in_flight=channel.in_flight_count,
                deferred=channel.deferred_count,
                message_count=channel.message_count,
                requeue_count=channel.requeue_count,
                timeout_count=channel.timeout_count,
                consumers=channel.consumers,
                paused=channel.paused,
            )
            for channel in topic.channels.all()
        ],
    )


def topic_metrics(engine: Engine) -> Block:
    """The series of all topics with their present values."""
    logs = [topic_stats(entry) for _, entry in sorted(engine.logs.items())]
    streams = [stream_stats(entry) for _, entry in sorted(streams_of(engine).items())]
    return topic_block(logs + streams)


def topic_block(topics: Sequence[TopicStats]) -> Block:
    """The series of these topics."""
    return Block(Position.TOPICS, partial(_families, topics))


def _families(topics: Sequence[TopicStats]) -> Iterator[Metric]:
    yield from families(_TOPIC, ("topic",), [((topic.name,), topic) for topic in topics])
    rows = [((t.name, channel.name), channel) for t in topics for channel in t.channels]
    yield from families(_CHANNEL, ("topic", "channel"), rows)
