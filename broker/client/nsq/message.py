"""A received message, and the methods that answer it."""

from __future__ import annotations

from typing import Protocol

from broker.client.nsq.options import Address


class Origin(Protocol):
    """The interface of the connection that a message came from, which sends its answer."""

    topic: str
    address: Address

    def finish(self, message: Message) -> bool:
        """FIN."""

    def requeue(self, message: Message, delay_s: float | None, backoff: bool) -> bool:
        """REQ."""

    def touch(self, message: Message) -> bool:
        """TOUCH."""


class Message:
    """One delivery. It is answered once, by `finish` or `requeue`; later calls do nothing."""

    __slots__ = ("answered", "attempts", "body", "id", "manual", "origin", "timestamp_ns")

    def __init__(
        self, origin: Origin, message_id: bytes, timestamp_ns: int, attempts: int, body: bytes
    ) -> None:
        self.origin = origin
        self.id = message_id
        self.timestamp_ns = timestamp_ns  # when it was published
        self.attempts = attempts  # 1 on the first delivery
        self.body = body
        self.answered = False
        self.manual = False  # the return of the handler does not answer it

    @property
    def topic(self) -> str:
        """The topic it was read from."""
        return self.origin.topic

    @property
    def address(self) -> Address:
        """The server it came from."""
        return self.origin.address

    def finish(self) -> bool:
        """Finish it. False: it was answered before, or its connection is lost."""
        return self.origin.finish(self)

    def requeue(self, delay_s: float | None = None, *, backoff: bool = True) -> bool:
        """Let the server deliver it again after the delay (None: it grows with the attempts).

        With `backoff` this counts as a failure and pauses the whole reader.
        """
        return self.origin.requeue(self, delay_s, backoff)

    def touch(self) -> bool:
        """Restart its timeout."""
        return self.origin.touch(self)

    def detach(self) -> None:
        """Let the handler return without answering: `finish` or `requeue` comes later."""
        self.manual = True

    def __repr__(self) -> str:
        return f"<Message {self.id.decode()} attempts={self.attempts} {len(self.body)} bytes>"
