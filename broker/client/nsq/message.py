"""A received message, and the methods that answer it."""

from __future__ import annotations

from typing import Protocol

from broker.client.nsq.options import Address


class Origin(Protocol):
    """The interface of the connection that received a message and sends its answer."""

    topic: str
    address: Address

    def finish(self, message: Message) -> bool:
        """FIN."""

    def requeue(self, message: Message, delay_s: float | None, backoff: bool) -> bool:
        """REQ."""

    def touch(self, message: Message) -> bool:
        """TOUCH."""


class Message:
    """One delivery. It is answered once, by `finish` or `requeue`; later calls do nothing.

    `body` and `id` are bytes, `attempts` is 1 on the first delivery, `timestamp_ns` is the time of
    the publish in nanoseconds since 1970.
    """

    __slots__ = ("_answered", "_detached", "_origin", "attempts", "body", "id", "timestamp_ns")

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes

    def __init__(
        self, origin: Origin, message_id: bytes, timestamp_ns: int, attempts: int, body: bytes
    ) -> None:
        """For readers, which create the messages."""
        self._origin = origin
        self.id = message_id
        self.timestamp_ns = timestamp_ns
        self.attempts = attempts
        self.body = body
        self._answered = False
        self._detached = False

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self._origin.topic

    @property
    def address(self) -> Address:
        """Host and port of the server that delivered it."""
        return self._origin.address

    def finish(self) -> bool:
        """Finish the message. False: it was answered before, or its connection is lost."""
        return self._origin.finish(self)

    def requeue(self, delay_s: float | None = None, *, backoff: bool = True) -> bool:
        """Let the server redeliver the message after the delay (None: it grows with the attempts).

        With `backoff` this counts as a failure, which pauses the whole reader. False: see `finish`.
        """
        return self._origin.requeue(self, delay_s, backoff)

    def touch(self) -> bool:
        """Restart the timeout of the message. False: see `finish`."""
        return self._origin.touch(self)

    def enable_async(self) -> None:
        """Let the handler return without answering; `finish` or `requeue` is called later."""
        self._detached = True

    def is_async(self) -> bool:
        """Whether `enable_async` was called."""
        return self._detached

    def has_responded(self) -> bool:
        """Whether the message was finished or requeued."""
        return self._answered

    detach = enable_async  # the name in earlier versions

    def __repr__(self) -> str:
        return f"<Message {self.id.decode()} attempts={self.attempts} {len(self.body)} bytes>"


def claim_answer(message: Message) -> bool:
    """Mark the message as answered. False: it was answered before."""
    if message._answered:
        return False
    message._answered = True
    return True


def is_from(message: Message, origin: Origin) -> bool:
    """Whether the message was received on this connection."""
    return message._origin is origin
