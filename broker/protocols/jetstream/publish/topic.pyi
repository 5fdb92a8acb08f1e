"""The NSQ topic that a stream replaces: its publishes."""

from typing import Any, final

from broker.protocols.jetstream.publish.stream import Stream
from broker.protocols.stream_topic import StreamTopic

@final
class NsqTopic(StreamTopic):
    def __init__(self, name: str, stream: Stream, channels: Any) -> None: ...
    def close(self) -> None: ...
