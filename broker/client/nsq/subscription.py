"""A connection of a Reader that is subscribed to one topic and channel, and answers messages."""

from __future__ import annotations

from collections.abc import Callable

from broker.client.nsq import limits
from broker.client.nsq.clock import Clock
from broker.client.nsq.connection import Connection
from broker.client.nsq.errors import NsqError, ServerError
from broker.client.nsq.flow import Flow, Outcome
from broker.client.nsq.message import Message, claim_answer
from broker.client.nsq.options import Address, Options


class Subscription:
    """One subscribed connection, with a part of the reader's RDY."""

    def __init__(
        self,
        address: Address,
        topic: str,
        options: Options,
        clock: Clock,
        flow: Flow,
        *,
        deliver: Callable[[Message], None],
        on_lost: Callable[[Subscription, NsqError], None],
        on_error: Callable[[NsqError], None],
        on_answered: Callable[[], None],
        requeue_s: tuple[float, float] = (limits.REQUEUE_S, limits.REQUEUE_S_MAX),
    ) -> None:
        self.address = address
        self.topic = topic
        self.ready = self.in_flight = 0
        self.ready_max = limits.RDY_MAX
        self.has_delivered = False
        self.heard_s = self.granted_s = clock.now()
        self.late_answers = 0  # answers that the server refused, usually after a timeout
        self._flow = flow
        self._deliver = deliver
        self._on_lost = on_lost
        self._on_error = on_error
        self._on_answered = on_answered
        self._requeue_s = requeue_s
        self.connection = Connection(
            address,
            options,
            clock,
            on_lost=self._lost,
            on_message=self._on_message,
            on_error=self._error,
        )

    async def subscribe(self, channel: str) -> None:
        """Connect and SUB; ConnectError or ServerError."""
        await self.connection.open()
        try:
            await self.connection.ask(f"SUB {self.topic} {channel}\n".encode())
        except BaseException:
            self.connection.close()
            raise
        self.ready_max = int(self.connection.features.get("max_rdy_count") or limits.RDY_MAX)

    def send_rdy(self, count: int) -> None:
        """Send RDY."""
        self.connection.command(b"RDY %d\n" % count)

    def _on_message(self, message_id: bytes, timestamp_ns: int, attempts: int, body: bytes) -> None:
        self._flow.received(self)
        self._deliver(Message(self, message_id, timestamp_ns, attempts, body))

    def _lost(self, error: NsqError) -> None:
        self._on_lost(self, error)

    def _error(self, error: ServerError) -> None:
        if not error.fatal:
            self.late_answers += 1
            self._on_error(error)  # after a fatal error the connection is lost, which is reported

    def finish(self, message: Message) -> bool:
        """Send FIN. False: the message was answered before, or the connection is lost."""
        if not claim_answer(message):
            return False
        sent = self.connection.alive
        if sent:
            self.connection.command(b"FIN %b\n" % message.id)
        self._flow.outcome(Outcome.SUCCESS)
        self._flow.answered(self)
        self._on_answered()
        return sent

    def requeue(self, message: Message, delay_s: float | None, backoff: bool) -> bool:
        """Send REQ; without `delay_s` the delay grows with the attempts. False: see `finish`."""
        if not claim_answer(message):
            return False
        if delay_s is None:
            delay_s = min(self._requeue_s[0] * message.attempts, self._requeue_s[1])
        sent = self.connection.alive
        if sent:
            delay_ms = max(0, round(delay_s * 1000))
            self.connection.command(b"REQ %b %d\n" % (message.id, delay_ms))
        self._flow.outcome(Outcome.FAILURE if backoff else Outcome.NEUTRAL)
        self._flow.answered(self)
        self._on_answered()
        return sent

    def touch(self, message: Message) -> bool:
        """Send TOUCH. False: see `finish`."""
        if message.has_responded() or not self.connection.alive:
            return False
        self.connection.command(b"TOUCH %b\n" % message.id)
        return True
