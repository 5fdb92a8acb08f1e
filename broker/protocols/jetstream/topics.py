"""Streams that are topics of NSQ: one log for the clients of both.

A stream with the metadata `twinwire.nsq_topic` stands for the topic of that name: the engine then
keeps no log of that name (Engine.reserve). The messages of the topic are those of the stream on the
subject with the topic's name. A channel is a consumer of the stream, and the other way round: each
pull consumer with explicit acks and that subject as its only filter is a channel.
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
_FOR_EVER: Final = "2200-01-01T00:00:00Z"  # a channel that is paused


def topic_of(config: StreamConfig) -> str:
    """The topic that a stream is to stand for; empty = none."""
    return config.metadata.get(TOPIC_KEY, "")


def consumer_of(channel: str) -> str:
    """The name of the consumer that is this channel."""
    return channel.replace(".", _DOT)


def channel_of(consumer: str) -> str:
    """The channel that the consumer of this name would be."""
    return consumer.replace(_DOT, ".")


def is_channel(config: ConsumerConfig, topic: str) -> bool:
    """Whether a consumer of a stream that stands for this topic is a channel."""
    return (
        not config.deliver_subject
        and config.ack_policy == "explicit"
        and (config.filter_subject == topic or config.filter_subjects == [topic])
        and config.priority_policy in {"", "none"}
        and not config.headers_only
        and is_name(channel_of(config.name).encode())
    )


def _refuse(text: str) -> ApiError:
    return ApiError(errors.STREAM_CONFIG, err=f"{TOPIC_KEY}: {text}")


class Owner(Protocol):
    """The JetStream side of an account, as far as topics need it."""

    account: Account
    context: JetStreamContext
    limits: AccountLimits


class Topics:
    """The topics of NSQ that streams of one account stand for."""

    def __init__(self, account: Owner, engine: Engine, access: Access) -> None:
        self.account = account
        self.engine = engine
        self.access = access
        self._claims: dict[str, str] = {}  # topic -> stream
        self._topics: dict[str, NsqTopic] = {}  # by the name of the stream

    # --- configurations

    def check(self, config: StreamConfig) -> None:
        """10052 if the stream cannot stand for the topic in its metadata."""
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
        owner = self._claims.get(topic, config.name)
        if owner != config.name:
            raise _refuse(f"the topic {topic!r} belongs to the stream {owner!r}")
        if topic in self.engine.logs or topic in self.engine.quarantined:
            raise _refuse(f"the topic {topic!r} exists with messages of its own: delete it first")

    def claim(self, config: StreamConfig) -> None:
        """Reserve the name of the topic of a stream; 10052 if it cannot be had."""
        self.check(config)
        topic = topic_of(config)
        if topic and topic not in self._claims:
            self.engine.reserve(topic)
            self._claims[topic] = config.name

    def settle(self, stream: str, topic: str = "") -> None:
        """Give up the topics of a stream but for this one."""
        for name in [n for n, owner in self._claims.items() if owner == stream and n != topic]:
            del self._claims[name]
            self.engine.release(name)

    # --- life

    def opened(self, stream: Stream) -> None:
        """A stream is served, and with it its topic."""
        name = topic_of(stream.config)
        if not name:
            return
        try:
            self.claim(stream.config)
        except (ApiError, NameTakenError) as problem:
            # only after a start, with files or settings that were changed meanwhile
            found = fields(stream=stream.name, topic=name)
            log.error("a stream does not stand for its topic: %s", problem, extra=found)
            return
        from broker.protocols.jetstream.publish.topic import NsqTopic

        topic = NsqTopic(name, stream, Channels(self.account, stream, name))
        self._topics[stream.name] = topic
        self.engine.reserve(name, topic)
        self.engine.announce(name, None, True)
        for channel in topic.channels.all():
            self.engine.announce(name, channel.name, True)

    def changed(self, stream: Stream) -> None:
        """A stream has another configuration."""
        name = topic_of(stream.config)
        known = self._topics.get(stream.name)
        if known is not None and known.name == name:
            return
        self.closed(stream, name)
        self.opened(stream)

    def offline(self, config: StreamConfig) -> None:
        """A stream cannot be served: nothing else becomes its topic."""
        try:
            self.claim(config)
        except (ApiError, NameTakenError) as problem:
            log.error("the topic of an offline stream: %s", problem)

    def closed(self, stream: Stream, keep: str = "") -> None:
        """A stream stands for its topic no longer: disconnect the clients of its channels. `keep`:
        the topic that it is about to stand for."""
        topic = self._topics.pop(stream.name, None)
        if topic is None:
            return
        channels = topic.channels.all()
        topic.close()
        self.settle(stream.name, keep)
        for consumer in stream.consumers.values():
            end_channel(consumer)
        for channel in channels:
            self.engine.announce(topic.name, channel.name, False)
        self.engine.announce(topic.name, None, False)

    def consumer_changed(self, consumer: Consumer, *, made: bool) -> None:
        """A consumer was created or deleted."""
        topic = self._topics.get(consumer.stream_name)
        if topic is not None and is_channel(consumer.config, topic.name):
            self.engine.announce(topic.name, channel_of(consumer.name), made)

    def consumer_updated(self, consumer: Consumer) -> None:
        """A consumer has another configuration: it may be a channel no longer."""
        topic = self._topics.get(consumer.stream_name)
        if topic is not None and not is_channel(consumer.config, topic.name):
            end_channel(consumer)


def end_channel(consumer: Consumer) -> None:
    """Disconnect the NSQ clients of a consumer."""
    channel = getattr(consumer, "channel", None)  # only pull consumers have one
    if channel is not None:
        channel.end()


class Channels:
    """The channels of one topic that is a stream, as protocols/stream_topic asks for them."""

    def __init__(self, account: Owner, stream: Stream, topic: str) -> None:
        self.account = account
        self.stream = stream
        self.topic = topic

    def all(self) -> list[StreamChannel]:
        """All of them, in the order of their names."""
        found = [
            consumer.open_channel(channel_of(consumer.name))
            for consumer in self.stream.consumers.values()
            if is_channel(consumer.config, self.topic)
        ]
        return sorted(found, key=lambda channel: channel.name)

    def find(self, name: str) -> StreamChannel | None:
        """The channel of this name; None: there is none. OSError: the name is taken."""
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
        """After the last message of the stream."""
        last: int = self.stream.store.last_seq
        return last + 1

    async def open(self, name: str, wait_ns: int, first_seq: int) -> StreamChannel:
        """The channel of this name, made if need be: to begin at this sequence, if others have been
        made before. OSError."""
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
            # somebody else may have created it at the same time
            if self.find(name) is None:
                raise
        found = self.find(name)
        if found is None:
            raise OSError(errno.ENOENT, "the channel was deleted meanwhile")
        return found

    def _config(self, name: str, wait_ns: int, first_seq: int) -> ConsumerConfig:
        """The consumer for a new channel. The first one begins with what the stream has, others
        with what is published after they were asked for, as those of a topic do."""
        config = ConsumerConfig(
            name=consumer_of(name),
            ack_policy="explicit",
            ack_wait=wait_ns,
            filter_subject=self.topic,
            deliver_policy="all",
            metadata={CHANNEL_KEY: name},
        )
        if self.stream.config.retention != "workqueue" and self._has_made_one():
            config.deliver_policy, config.opt_start_seq = "by_start_sequence", first_seq
        account = self.account
        bounds = (
            account.context.config.max_ack_pending,
            account.limits.max_ack_pending,
            self.stream.config.consumer_limits.max_ack_pending,
        )
        if max(bounds) <= 0:
            config.max_ack_pending = -1  # RDY says how many a client may have
        if is_ephemeral(name.encode()):
            config.mem_storage = True
        else:
            config.durable_name = config.name
        return config

    def _has_made_one(self) -> bool:
        """Whether there is a channel that an NSQ client has created."""
        consumers = self.stream.consumers.values()
        return any(CHANNEL_KEY in consumer.config.metadata for consumer in consumers)

    async def delete(self, channel: StreamChannel) -> None:
        """Delete a channel with its consumer; its clients are disconnected. OSError."""
        await self._request("DELETE", consumer_of(channel.name), b"")

    async def pause(self, channel: StreamChannel, paused: bool) -> None:
        """Deliver nothing, or go on. OSError."""
        body = encode({"pause_until": _FOR_EVER} if paused else {})
        await self._request("PAUSE", consumer_of(channel.name), body)

    async def _request(self, verb: str, consumer: str, body: bytes) -> dict[str, Any]:
        """Ask the API, which answers its requests in order. OSError: it refuses."""
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
