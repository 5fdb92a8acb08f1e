"""Streams that stand for topics of NSQ: one log for the clients of both.

A stream with the metadata `twinwire.nsq_topic` stands for the topic of that name: the engine then
has no log of that name (Engine.reserve). The messages of the topic are those of the stream on the
subject with the topic's name. Each channel is a pull consumer of the stream with explicit acks and
that subject as its only filter, and each such consumer is a channel.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from broker.base.logs import fields
from broker.base.units import SECOND
from broker.engine.log.files import NameTakenError
from broker.engine.names import is_ephemeral, is_name
from broker.protocols.access import READ, WRITE
from broker.protocols.jetstream import errors, limits
from broker.protocols.jetstream.errors import ApiError
from broker.protocols.jetstream.structs import ConsumerConfig, CreateConsumerRequest, encode
from broker.protocols.nats.accounts.asking import Question, ask
from broker.protocols.nats.accounts.subjects import is_subject, lies_within

if TYPE_CHECKING:
    from broker.engine.engine import Engine
    from broker.protocols.access import Access
    from broker.protocols.jetstream.consumers.consumer import Consumer
    from broker.protocols.jetstream.context import JetStreamContext
    from broker.protocols.jetstream.publish.stream import Stream
    from broker.protocols.jetstream.publish.topic import NsqTopic
    from broker.protocols.jetstream.structs import AccountLimits, StreamConfig
    from broker.protocols.nats.accounts.account import Account
    from broker.protocols.stream_topic import StreamChannel

log = logging.getLogger("broker.jetstream")

TOPIC_KEY: Final = "twinwire.nsq_topic"
CHANNEL_KEY: Final = "twinwire.nsq_channel"  # of consumers that NSQ clients have created
_DOT: Final = "%2E"  # a dot of a channel in the name of its consumer; channels have no %
_CREATED, _REMOVED = True, False  # of Engine.announce
_FOR_EVER: Final = "2200-01-01T00:00:00Z"  # `pause_until` of a paused channel


def topic_of(config: StreamConfig) -> str:
    """The topic in the metadata of a stream; empty = none."""
    return config.metadata.get(TOPIC_KEY, "")


def consumer_of(channel: str) -> str:
    """The name of the consumer of a channel."""
    return channel.replace(".", _DOT)


def channel_of(consumer: str) -> str:
    """The name of the channel of a consumer."""
    return consumer.replace(_DOT, ".")


def is_channel(config: ConsumerConfig, topic: str) -> bool:
    """Whether a consumer of a stream that stands for this topic is a channel."""
    return (
        not config.deliver_subject
        and config.ack_policy == "explicit"
        and (config.filter_subject == topic or config.filter_subjects == [topic])
        and config.priority_policy == "none"
        and not config.headers_only
        and is_name(channel_of(config.name).encode())
    )


def _refuse(text: str) -> ApiError:
    return ApiError(errors.STREAM_CONFIG, err=f"{TOPIC_KEY}: {text}")


class TopicAccount(Protocol):
    """The JetStreamAccount, as this module uses it."""

    account: Account
    context: JetStreamContext
    limits: AccountLimits


class Topics:
    """The NSQ topics for which streams of one account stand."""

    def __init__(self, account: TopicAccount, engine: Engine, access: Access) -> None:
        self.account = account
        self.engine = engine
        self.access = access
        self._reserved: dict[str, str] = {}  # topic -> stream
        self._topics: dict[str, NsqTopic] = {}  # by the name of the stream

    # --- configurations

    def check(self, config: StreamConfig) -> None:
        """ApiError 10052: the stream cannot stand for the topic in its metadata."""
        topic = topic_of(config)
        if TOPIC_KEY not in config.metadata:
            return
        if (
            not is_name(topic.encode())
            or is_ephemeral(topic.encode())
            or not is_subject(topic)
            or topic.encode().startswith(self.engine.shared.private_subjects)
        ):
            raise _refuse(f"{topic!r} is not the name of a topic that can be a subject")
        if not any(lies_within(topic, subject) for subject in config.subjects):
            raise _refuse(f"{topic!r} is none of the subjects of the stream")
        if config.subject_transform is not None:
            raise _refuse("the stream has a subject transform")
        if self.account.account.router is not self.engine.shared.router:
            raise _refuse("NSQ clients belong to another account")
        if not (self.access.may_use_stream(READ) or self.access.may_use_stream(WRITE)):
            raise _refuse("[bridge] does not connect NSQ and NATS")
        owner = self._reserved.get(topic, config.name)
        if owner != config.name:
            raise _refuse(f"the topic {topic!r} belongs to the stream {owner!r}")
        if topic in self.engine.logs or topic in self.engine.quarantined:
            raise _refuse(f"the topic {topic!r} exists with messages of its own: delete it first")

    def reserve(self, config: StreamConfig) -> None:
        """Reserve the topic of a stream in the engine. ApiError 10052: it cannot stand for it."""
        self.check(config)
        topic = topic_of(config)
        if topic and topic not in self._reserved:
            self.engine.reserve(topic)
            self._reserved[topic] = config.name

    def release(self, stream: str, topic: str = "") -> None:
        """Release the reserved topics of a stream, except the topic `topic`."""
        for name in [n for n, owner in self._reserved.items() if owner == stream and n != topic]:
            del self._reserved[name]
            self.engine.release(name)

    # --- streams and consumers

    def stream_opened(self, stream: Stream) -> None:
        """Serve the topic of a stream that is served from now on."""
        name = topic_of(stream.config)
        if not name:
            return
        try:
            self.reserve(stream.config)
        except (ApiError, NameTakenError) as problem:
            # Possible after a start only: files or settings were changed meanwhile.
            found = fields(stream=stream.name, topic=name)
            log.error("a stream does not stand for its topic: %s", problem, extra=found)
            return
        from broker.protocols.jetstream.publish.topic import NsqTopic

        topic = NsqTopic(name, stream, Channels(self.account, stream, name))
        self._topics[stream.name] = topic
        self.engine.reserve(name, topic)
        self.engine.announce(name, None, _CREATED)
        for channel in topic.channels.all():
            self.engine.announce(name, channel.name, _CREATED)

    def stream_changed(self, stream: Stream) -> None:
        """A stream has another configuration."""
        name = topic_of(stream.config)
        known = self._topics.get(stream.name)
        if known is not None and known.name == name:
            return
        self.stream_closed(stream, name)
        self.stream_opened(stream)

    def stream_offline(self, config: StreamConfig) -> None:
        """Reserve the topic of a stream that cannot be served."""
        try:
            self.reserve(config)
        except (ApiError, NameTakenError) as problem:
            log.error("the topic of an offline stream: %s", problem)

    def stream_closed(self, stream: Stream, keep: str = "") -> None:
        """A stream no longer stands for its topic: disconnect the clients of its channels. `keep`:
        the topic for which it stands next; it stays reserved."""
        topic = self._topics.pop(stream.name, None)
        if topic is None:
            return
        channels = topic.channels.all()
        topic.close()
        self.release(stream.name, keep)
        for consumer in stream.consumers.values():
            end_channel(consumer)
        for channel in channels:
            self.engine.announce(topic.name, channel.name, _REMOVED)
        self.engine.announce(topic.name, None, _REMOVED)

    def announce_consumer(self, consumer: Consumer, *, created: bool) -> None:
        """Report a channel that was created or deleted with its consumer."""
        topic = self._topics.get(consumer.stream_name)
        if topic is not None and is_channel(consumer.config, topic.name):
            self.engine.announce(topic.name, channel_of(consumer.name), created)

    def consumer_updated(self, consumer: Consumer) -> None:
        """A consumer has another configuration: if it is no longer a channel, disconnect its NSQ
        clients."""
        topic = self._topics.get(consumer.stream_name)
        if topic is not None and not is_channel(consumer.config, topic.name):
            end_channel(consumer)


def end_channel(consumer: Consumer) -> None:
    """Disconnect the NSQ clients of a consumer."""
    channel = getattr(consumer, "channel", None)  # only pull consumers have one
    if channel is not None:
        channel.end()


class Channels:
    """The channels of a topic for which a stream stands: see `channels` in
    protocols/stream_topic.pyi."""

    def __init__(self, account: TopicAccount, stream: Stream, topic: str) -> None:
        self.account = account
        self.stream = stream
        self.topic = topic

    def all(self) -> list[StreamChannel]:
        """All channels, sorted by name."""
        found = [
            consumer.open_channel(channel_of(consumer.name))
            for consumer in self.stream.consumers.values()
            if is_channel(consumer.config, self.topic)
        ]
        return sorted(found, key=lambda channel: channel.name)

    def find(self, name: str) -> StreamChannel | None:
        """The channel of this name; None: there is none. OSError: a consumer that is not a channel
        has its name."""
        consumer = self.stream.consumers.get(consumer_of(name))
        if consumer is None:
            return None
        if not is_channel(consumer.config, self.topic):
            raise OSError(
                errno.EEXIST,
                f"the consumer {consumer.name} of the stream {self.stream.name} is not a channel",
            )
        channel: StreamChannel = consumer.open_channel(name)
        return channel

    @property
    def next_seq(self) -> int:
        """The sequence of the next message of the stream."""
        last: int = self.stream.store.last_seq
        return last + 1

    async def open(self, name: str, wait_ns: int, first_seq: int) -> StreamChannel:
        """The channel of this name, which is created if it does not exist. `first_seq`: where it
        begins, unless it is the first channel of an NSQ client or the stream is a work queue.
        OSError."""
        found = self.find(name)
        if found is not None:
            return found
        request = CreateConsumerRequest(
            stream_name=self.stream.name,
            config=self._config(name, wait_ns, first_seq),
            action="create",
        )
        try:
            await self._request("CREATE", consumer_of(name), encode(request))
        except OSError:
            # another client may have created it at the same time
            if self.find(name) is None:
                raise
        found = self.find(name)
        if found is None:
            raise OSError(errno.ENOENT, "the channel was deleted meanwhile")
        return found

    def _config(self, name: str, wait_ns: int, first_seq: int) -> ConsumerConfig:
        """The consumer for a new channel. As in a topic, the first channel begins with the first
        message, and later ones with the messages that are published after they were requested."""
        config = ConsumerConfig(
            name=consumer_of(name),
            ack_policy="explicit",
            ack_wait=wait_ns,
            filter_subject=self.topic,
            deliver_policy="all",
            metadata={CHANNEL_KEY: name},
        )
        if self.stream.config.retention != "workqueue" and self._has_nsq_channel():
            config.deliver_policy, config.opt_start_seq = "by_start_sequence", first_seq
        account = self.account
        bounds = (
            account.context.config.max_ack_pending,
            account.limits.max_ack_pending,
            self.stream.config.consumer_limits.max_ack_pending,
        )
        if max(bounds) <= 0:
            config.max_ack_pending = -1  # RDY limits the messages in flight to a client
        if is_ephemeral(name.encode()):
            config.mem_storage = True
        else:
            config.durable_name = config.name
        return config

    def _has_nsq_channel(self) -> bool:
        """Whether an NSQ client has created a channel of the stream before."""
        consumers = self.stream.consumers.values()
        return any(CHANNEL_KEY in consumer.config.metadata for consumer in consumers)

    async def delete(self, channel: StreamChannel) -> None:
        """Delete a channel with its consumer; its clients are disconnected. OSError."""
        await self._request("DELETE", consumer_of(channel.name), b"")

    async def pause(self, channel: StreamChannel, paused: bool) -> None:
        """Pause or resume a channel. OSError."""
        body = encode({"pause_until": _FOR_EVER} if paused else {})
        await self._request("PAUSE", consumer_of(channel.name), body)

    async def _request(self, verb: str, consumer: str, body: bytes) -> dict[str, Any]:
        """Send a request to the API of the account, which handles requests in order. OSError: it is
        refused."""
        subject = f"$JS.API.CONSUMER.{verb}.{self.stream.name}.{consumer}"
        question = Question(subject.encode(), body)
        found = await ask(self.account.account, question, limits.JS_OWN_REQUEST / SECOND)
        if found is None:
            raise TimeoutError(errno.ETIMEDOUT, "JetStream does not answer")
        answer: dict[str, Any] = msgspec.json.decode(found)
        error = answer.get("error")
        if error is not None:
            raise OSError(errno.EPERM, error.get("description", ""))
        return answer
