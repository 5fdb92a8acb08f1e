"""Consumes one channel of one topic from every server that has it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import ClassVar, Self

from broker.client.nsq import limits
from broker.client.nsq.clock import Clock, LoopClock, Timer
from broker.client.nsq.errors import ClosedError, ConnectError, NsqError
from broker.client.nsq.flow import Flow
from broker.client.nsq.lookup import Lookup
from broker.client.nsq.message import Message, is_from
from broker.client.nsq.options import Address, Options, checked, parse_address, several
from broker.client.nsq.subscription import Subscription

Handler = Callable[[Message], bool | Awaitable[bool | None] | None]
_log = logging.getLogger("twinwire.nsq")


class Reader:
    """A consumer: with a handler, or as an async iterator whose messages the caller answers.

    If the handler, plain or async, returns False or raises, the message is requeued (REQ), else it
    is finished (FIN). At most `max_in_flight` messages are in progress at any time. The servers are
    `nsqd_tcp_addresses`, or found through `lookupd_http_addresses`.

    `async with Reader(...)` starts to connect and does not wait, because servers may start later;
    `await reader.connected()` waits.
    """

    _clock: ClassVar[Clock] = LoopClock()

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        options: Options | None = None,
        max_in_flight: int = limits.MAX_IN_FLIGHT,
        max_attempts: int = limits.MAX_ATTEMPTS,
        requeue_s: float = limits.REQUEUE_S,
        requeue_s_max: float = limits.REQUEUE_S_MAX,
        backoff_s_max: float = limits.BACKOFF_S_MAX,
        reconnect_s: float = limits.RECONNECT_S,
        lookup_s: float = limits.LOOKUP_S,
        on_giving_up: Callable[[Message], object] | None = None,
        on_error: Callable[[NsqError], object] | None = None,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
    ) -> None:
        """`nsqd` and `lookupd` are short names of `nsqd_tcp_addresses` and
        `lookupd_http_addresses`."""
        direct = several("nsqd_tcp_addresses", nsqd_tcp_addresses or nsqd)
        lookups = several("lookupd_http_addresses", lookupd_http_addresses or lookupd)
        if bool(direct) == bool(lookups):
            raise ValueError("give nsqd_tcp_addresses or lookupd_http_addresses, and not both")
        if handler is not None and not callable(handler):
            raise TypeError(f"handler must be a function, not {type(handler).__name__}")
        checked(topic)
        checked(channel, "channel")
        self.topic, self.channel = topic, channel
        self._handler = handler
        self._direct = [parse_address(text) for text in direct]
        self._lookup = Lookup(lookups) if lookups else None
        self._options = options or Options()
        self._rng = random.Random()  # noqa: S311  distributes load, no secrets
        self._flow = Flow(max_in_flight, self._clock, backoff_s_max=backoff_s_max, chance=self._rng)
        self._max_attempts = max_attempts
        self._requeue_s = (requeue_s, requeue_s_max)
        self._reconnect_s = reconnect_s
        self._lookup_s = lookup_s
        self._on_giving_up = on_giving_up
        self._on_error = on_error
        # None while the connection is being opened.
        self._subscriptions: dict[Address, Subscription | None] = {}
        self._failures: dict[Address, int] = {}
        self._timers: dict[Address | None, Timer] = {}  # None: the next poll
        self._tasks: set[asyncio.Task[None]] = set()
        self._handling: set[asyncio.Task[None]] = set()
        self._queue: deque[Message] = deque()
        self._changed = asyncio.Event()
        self._connected = asyncio.Event()  # subscribed on at least one server, or closed
        self._last_error: NsqError | None = None
        self._logged_kinds: set[tuple[type[BaseException], str]] = set()
        self._running = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def addresses(self) -> list[Address]:
        """The servers on which it is subscribed."""
        return [
            subscription.address
            for subscription in self._flow.subscriptions
            if isinstance(subscription, Subscription)
        ]

    @property
    def in_flight(self) -> int:
        """The number of received messages without an answer."""
        return sum(subscription.in_flight for subscription in self._flow.subscriptions)

    # --- connections ---

    async def start(self) -> None:
        """Start connecting; unreachable servers are retried."""
        self._flow.start()
        for address in self._direct:
            self._dial(address)
        if self._lookup is not None:
            self._spawn(self._poll())

    async def connected(self, timeout_s: float | None = None) -> None:
        """Wait until it is subscribed on at least one server.

        ConnectError: the timeout has passed; its text has the last error. ClosedError: the reader
        was closed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            reason = self._last_error or "no server of the topic was found"
            raise ConnectError(f"not connected after {timeout_s} s: {reason}") from None
        if self._closed:
            raise ClosedError("the reader is closed")

    @property
    def max_in_flight(self) -> int:
        """The limit of messages in progress; 0 = paused."""
        return self._flow.max_in_flight

    @property
    def backing_off(self) -> bool:
        """Whether the reader receives fewer messages because messages have failed."""
        return self._flow.level > 0

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report_error(self, error: NsqError) -> None:
        self._last_error = error
        if self._on_error is not None:
            self._on_error(error)
        else:
            _log.warning("%s/%s: %s", self.topic, self.channel, error)

    def _dial(self, address: Address) -> None:
        self._timers.pop(address, None)
        if address not in self._subscriptions and not self._closed:
            self._subscriptions[address] = None
            self._spawn(self._connect(address))

    async def _connect(self, address: Address) -> None:
        subscription = Subscription(
            address,
            self.topic,
            self._options,
            self._clock,
            self._flow,
            deliver=self._deliver,
            on_lost=self._lost,
            on_error=self._report_error,
            on_answered=self._message_answered,
            requeue_s=self._requeue_s,
        )
        try:
            await subscription.subscribe(self.channel)
        except NsqError as error:
            self._report_error(error)
            self._retry_later(address)
            return
        if self._closed or not subscription.connection.alive:
            subscription.connection.close()
            self._retry_later(address)
            return
        self._subscriptions[address] = subscription
        self._failures.pop(address, None)
        self._flow.add(subscription)
        self._connected.set()

    def _lost(self, subscription: Subscription, error: NsqError) -> None:
        if self._subscriptions.get(subscription.address) is not subscription:
            return  # it was not subscribed yet: _connect handles the error
        self._flow.remove(subscription)
        if not self._flow.subscriptions and not self._closed:
            self._connected.clear()
        for message in [m for m in self._queue if is_from(m, subscription)]:
            self._queue.remove(message)  # the server redelivers it
        self._changed.set()
        if not self._closed:
            self._report_error(error)
        self._retry_later(subscription.address)

    def _retry_later(self, address: Address) -> None:
        """Retry later: after a delay that doubles with each failure, or with the next poll."""
        self._subscriptions.pop(address, None)
        if self._closed or self._lookup is not None:
            return
        failures = self._failures.get(address, 0)
        self._failures[address] = failures + 1
        delay_s = min(self._reconnect_s * 2.0 ** min(failures, 30), limits.RECONNECT_S_MAX)
        self._timers[address] = self._clock.call_later(delay_s, lambda: self._dial(address))

    async def _poll(self) -> None:
        assert self._lookup is not None
        found, failures = await self._lookup.producers(self.topic)
        for failure in failures:
            self._report_error(failure)
        for address in found:
            self._dial(address)
        if not self._closed:
            delay_s = self._lookup_s * (1 + limits.LOOKUP_JITTER * self._rng.random())
            self._timers[None] = self._clock.call_later(delay_s, lambda: self._spawn(self._poll()))

    # --- messages ---

    def _deliver(self, message: Message) -> None:
        if self._closed:
            message.requeue(0, backoff=False)
        elif self._handler is None:
            self._queue.append(message)
            self._changed.set()
        elif self._running < max(1, self._flow.max_in_flight) and not self._queue:
            self._handle(message)
        else:
            self._queue.append(message)

    def _handle(self, message: Message) -> None:
        assert self._handler is not None
        if 0 < self._max_attempts < message.attempts:
            self._give_up(message)
            return
        self._running += 1
        try:
            result = self._handler(message)
        except Exception as error:
            self._handler_failed(message, error)
            self._handler_ended()
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(self._await_handler(message, result))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)
        else:
            self._settle(message, result)
            self._handler_ended()

    async def _await_handler(self, message: Message, result: Awaitable[bool | None]) -> None:
        try:
            self._settle(message, await result)
        except Exception as error:
            self._handler_failed(message, error)
        finally:
            self._handler_ended()

    def _message_answered(self) -> None:
        if self._closed:
            self._changed.set()

    def _handler_ended(self) -> None:
        self._running -= 1
        self._changed.set()
        if self._queue and self._handler is not None:
            asyncio.get_running_loop().call_soon(self._handle_next)

    def _handle_next(self) -> None:
        while self._queue and self._running < max(1, self._flow.max_in_flight):
            self._handle(self._queue.popleft())

    def _settle(self, message: Message, result: bool | None) -> None:
        if message.has_responded() or message.is_async():
            return
        if result is False:
            message.requeue()
        else:
            message.finish()

    def _handler_failed(self, message: Message, error: Exception) -> None:
        """Log the error and requeue the message; the traceback is logged for the first error of a
        kind, or with DEBUG."""
        kind = type(error), _location(error)
        shown = kind not in self._logged_kinds and len(self._logged_kinds) < limits.ERROR_KINDS_MAX
        if shown:
            self._logged_kinds.add(kind)
        _log.error(
            "%s/%s: the handler failed on %r: %s: %s",
            self.topic,
            self.channel,
            message,
            type(error).__name__,
            str(error).partition("\n")[0],
            exc_info=error if shown or _log.isEnabledFor(logging.DEBUG) else None,
        )
        message.requeue()

    def _give_up(self, message: Message) -> None:
        try:
            if self._on_giving_up is not None:
                self._on_giving_up(message)
        except Exception as error:
            self._handler_failed(message, error)
            return
        message.finish()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Message]:
        if self._handler is not None:
            raise ValueError("this reader has a handler: it cannot be iterated")
        while True:
            while self._queue:
                message = self._queue.popleft()
                if 0 < self._max_attempts < message.attempts:
                    self._give_up(message)
                else:
                    yield message
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()

    def change_max_in_flight(self, count: int) -> None:
        """Change max_in_flight; 0 pauses."""
        self._flow.change(count)

    # --- closing ---

    async def close(self, timeout_s: float = limits.CLOSE_S) -> None:
        """Accept no new messages, wait for running handlers, and close.

        Messages that no handler has received are requeued at once; the server redelivers messages
        that are not answered in time.
        """
        if self._closed:
            return
        self._closed = True
        self._connected.set()
        self._flow.stop()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._changed.set()
        while self._queue:
            self._queue.popleft().requeue(0, backoff=False)
        subscriptions = [
            subscription
            for subscription in self._subscriptions.values()
            if subscription is not None
        ]
        try:
            async with asyncio.timeout(timeout_s):
                answers = [subscription.connection.ask(b"CLS\n") for subscription in subscriptions]
                await asyncio.gather(*answers, return_exceptions=True)
                while self.in_flight:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._report_error(ClosedError(f"{self.in_flight} messages were not answered in time"))
        for subscription in subscriptions:
            subscription.connection.close()
        for task in self._handling:
            task.cancel()
        if self._lookup is not None:
            await self._lookup.close()


def _location(error: Exception) -> str:
    """The file and line that raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
