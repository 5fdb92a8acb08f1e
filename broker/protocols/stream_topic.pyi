"""A topic of NSQ that is a stream of JetStream: what NSQ calls, and JetStream implements."""

from typing import Protocol

from typing_extensions import disjoint_base

from broker.engine.log.log import Log

class _Channels(Protocol):
    """The channels of one topic. OSError with a text for clients: it cannot be done."""

    def all(self) -> list[StreamChannel]:
        """All of them, in the order of their names."""

    def find(self, name: str) -> StreamChannel | None:
        """The channel of this name; None: there is none. OSError: the name is taken."""

    @property
    def next_seq(self) -> int:
        """After the last message of the stream."""

    async def open(self, name: str, wait_ns: int, first_seq: int) -> StreamChannel:
        """The channel of this name, made if need be: to begin at this sequence, if others have been
        made before. `wait_ns`: how long its messages wait for FIN if a client does not say."""

    async def delete(self, channel: StreamChannel) -> None: ...
    async def pause(self, channel: StreamChannel, paused: bool) -> None: ...

@disjoint_base
class StreamTopic:
    name: str
    subject: bytes
    stream: str
    log: Log
    channels: _Channels
    closed: bool
    refusal: str
    message_count: int
    message_bytes: int
    def __init__(self, name: str, stream: str, log: Log, channels: _Channels) -> None: ...
    @property
    def depth(self) -> int: ...
    async def publish_all(self, bodies: list[bytes]) -> None: ...

@disjoint_base
class StreamChannel:
    name: str
    deleted: bool
    consumers: int
    requeue_count: int
    @property
    def depth(self) -> int: ...
    @property
    def in_flight_count(self) -> int: ...
    @property
    def deferred_count(self) -> int: ...
    @property
    def message_count(self) -> int: ...
    @property
    def timeout_count(self) -> int: ...
    @property
    def paused(self) -> bool: ...
