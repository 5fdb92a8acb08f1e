"""Publishes to one nsqd or several, pipelined; connections are opened at the first publish."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import ClassVar, Self

from broker.client.nsq import limits
from broker.client.nsq.clock import Clock, LoopClock
from broker.client.nsq.connection import Connection
from broker.client.nsq.errors import ClosedError, ConnectError, NsqError, PendingFullError
from broker.client.nsq.options import Address, Options, checked, parse_address, several

Body = bytes | bytearray | memoryview


class _Node:
    """One server and its state."""

    def __init__(self, address: Address, options: Options, clock: Clock) -> None:
        self.address = address
        self.retry_at_s = 0.0
        self.connection: Connection | None = None
        self._options = options
        self._clock = clock
        self._retry_s = limits.WRITER_RETRY_S
        self._opening = asyncio.Lock()

    @property
    def down(self) -> bool:
        """Whether the last connect failed and the time of the next one has not come."""
        return self.connection is None and self._clock.now() < self.retry_at_s

    def _lost(self, _: NsqError) -> None:
        self.connection = None

    async def open(self) -> Connection:
        """Return the connection; open it if there is none. ConnectError."""
        async with self._opening:
            if self.connection is None:
                new = Connection(self.address, self._options, self._clock, on_lost=self._lost)
                try:
                    await new.open()
                except ConnectError:
                    self.retry_at_s = self._clock.now() + self._retry_s
                    self._retry_s = min(2 * self._retry_s, limits.WRITER_RETRY_S_MAX)
                    raise
                self._retry_s = limits.WRITER_RETRY_S
                self.connection = new
            return self.connection


class Writer:
    """A publisher. With several addresses, each publish uses the next server.

    `async with Writer("127.0.0.1:4150") as writer` connects and closes. A publish whose connection
    is lost before the answer raises ClosedError: the server may have stored the message. With
    `failover` unreachable servers are skipped; without it, publishes to them fail. At most
    `pending_max` publishes of one connection wait for their answer.
    """

    _clock: ClassVar[Clock] = LoopClock()

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        options: Options | None = None,
        *,
        failover: bool = True,
        pending_max: int = limits.PENDING_MAX,
        addresses: str | Iterable[str] = (),
    ) -> None:
        """`addresses` is an earlier name of `nsqd_tcp_addresses`."""
        given = several("nsqd_tcp_addresses", nsqd_tcp_addresses or addresses)
        if not given:
            raise ValueError("nsqd_tcp_addresses is empty: give at least one nsqd")
        self._nodes = [_Node(parse_address(a), options or Options(), self._clock) for a in given]
        self._next_index = 0
        self._failover = failover
        self._pending_max = pending_max
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect to a server now instead of at the first publish."""
        await self._pick()

    async def _pick(self) -> Connection:
        if self._closed:
            raise ClosedError("the writer is closed")
        nodes = self._nodes[self._next_index :] + self._nodes[: self._next_index]
        self._next_index = (self._next_index + 1) % len(nodes)
        if not self._failover:
            nodes = nodes[:1]
        nodes.sort(key=lambda node: node.down)  # a stable sort: unreachable servers come last
        failure: ConnectError | None = None
        for node in nodes:
            try:
                connection = node.connection or await node.open()
            except ConnectError as error:
                failure = error
                continue
            await connection.room()
            return connection
        assert failure is not None
        raise failure

    async def _publish(self, data: bytes) -> None:
        connection = await self._pick()
        await self._ask(connection, data)

    def _ask(self, connection: Connection, data: bytes) -> asyncio.Future[bytes]:
        if connection.pending >= self._pending_max:
            raise PendingFullError(f"{connection.pending} publishes wait for their answer")
        return connection.ask(data)

    async def publish(self, topic: str, body: Body) -> None:
        """Publish one message, and wait until the server has acknowledged it.

        Calls may be concurrent. ServerError: the server refused it. ConnectError: nothing was sent.
        """
        await self._publish(encode_pub(topic, body))

    async def multi_publish(self, topic: str, bodies: Iterable[Body]) -> None:
        """Publish several messages with one command: all of them or none."""
        await self._publish(encode_mpub(topic, bodies))

    async def deferred_publish(self, topic: str, body: Body, delay_s: float) -> None:
        """Publish one message that the server delivers after the delay."""
        await self._publish(encode_dpub(topic, body, delay_s))

    def send(self, topic: str, body: Body) -> asyncio.Future[bytes]:
        """Publish on an open connection and return the future of the answer.

        The fastest way to publish many messages; the caller limits their number.
        """
        for _ in self._nodes:
            node = self._nodes[self._next_index]
            self._next_index = (self._next_index + 1) % len(self._nodes)
            if node.connection is not None:
                return self._ask(node.connection, encode_pub(topic, body, "send()"))
        raise ClosedError("not connected: await connect() first")

    # The names in pynsq and ansq.
    pub = publish
    mpub = multi_publish
    dpub = deferred_publish

    async def close(self) -> None:
        """Wait up to CLOSE_S for pending answers, then close."""
        self._closed = True
        for node in self._nodes:
            connection = node.connection
            if connection is not None:
                try:
                    async with asyncio.timeout(limits.CLOSE_S):
                        await connection.settled()
                except TimeoutError:
                    pass  # pending publishes raise the error of the closed connection
                connection.close()


def encode_pub(topic: str, body: Body, call: str = "publish()") -> bytes:
    """The bytes of a PUB. ValueError, TypeError: an argument of `call` is invalid."""
    name, data = checked(topic), _bytes(body, call)
    return b"PUB %b\n%b%b" % (name, len(data).to_bytes(4, "big"), data)


def encode_dpub(topic: str, body: Body, delay_s: float) -> bytes:
    """The bytes of a DPUB. ValueError, TypeError."""
    call = "deferred_publish()"
    name, data = checked(topic), _bytes(body, call)
    _check_delay(delay_s, call)
    size = len(data).to_bytes(4, "big")
    return b"DPUB %b %d\n%b%b" % (name, round(delay_s * 1000), size, data)


def encode_mpub(topic: str, bodies: Iterable[Body]) -> bytes:
    """The bytes of an MPUB. ValueError, TypeError."""
    call = "multi_publish()"
    name = checked(topic)
    _check_list(bodies, call)
    parts: list[bytes] = []
    for body in bodies:
        data = _bytes(body, call)
        parts += [len(data).to_bytes(4, "big"), data]
    if not parts:
        raise ValueError(f"{call} bodies is empty: give at least one message")
    content = (len(parts) // 2).to_bytes(4, "big") + b"".join(parts)
    return b"MPUB %b\n%b%b" % (name, len(content).to_bytes(4, "big"), content)


def _check_delay(delay_s: object, call: str) -> None:
    if not isinstance(delay_s, int | float):
        kind = type(delay_s).__name__
        raise TypeError(f"{call} delay_s must be a number of seconds, not {kind}")
    if not 0 <= delay_s < math.inf:
        raise ValueError(f"{call} delay_s must be at least 0, not {delay_s}")


def _check_list(bodies: object, call: str) -> None:
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Iterable):
        raise TypeError(f"{call} bodies must be a list of bytes, not {type(bodies).__name__}")


def _bytes(body: object, call: str) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    hint = ": encode it" if isinstance(body, str) else ""
    raise TypeError(f"{call} body must be bytes, not {type(body).__name__}{hint}")
