"""A message as the consumer gets it, and what may be done with it."""

from __future__ import annotations

from typing import Protocol

from broker.client.nsq.options import Address


class Desk(Protocol):
    """Where a message is answered: the connection it came from, as the Reader keeps it."""

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

    __slots__ = ("answered", "attempts", "body", "desk", "id", "manual", "timestamp_ns")

    def __init__(
        self, desk: Desk, message_id: bytes, timestamp_ns: int, attempts: int, body: bytes
    ) -> None:
        self.desk = desk
        self.id = message_id
        self.timestamp_ns = timestamp_ns  # when it was published
        self.attempts = attempts  # 1 on the first delivery
        self.body = body
        self.answered = False
        self.manual = False  # the handler's return does not answer it

    @property
    def topic(self) -> str:
        """The topic it was read from."""
        return self.desk.topic

    @property
    def address(self) -> Address:
        """The server it came from."""
        return self.desk.address

    def finish(self) -> bool:
        """Done with it. False if it was answered before or its connection is gone."""
        return self.desk.finish(self)

    def requeue(self, delay_s: float | None = None, *, backoff: bool = True) -> bool:
        """Have it again after the delay (None: grows with the attempts).

        With `backoff` this counts as a failure and slows the whole reader down.
        """
        return self.desk.requeue(self, delay_s, backoff)

    def touch(self) -> bool:
        """Start its timeout anew."""
        return self.desk.touch(self)

    def detach(self) -> None:
        """Let the handler return without answering: `finish` or `requeue` comes later."""
        self.manual = True

    def __repr__(self) -> str:
        return f"<Message {self.id.decode()} attempts={self.attempts} {len(self.body)} bytes>"
