"""Publishes to one nsqd or several, pipelined; connections are opened when they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self

from broker.client.nsq import limits
from broker.client.nsq.clock import Clock, LoopClock
from broker.client.nsq.connection import Connection
from broker.client.nsq.errors import ClosedError, ConnectError, NsqError, PendingFullError
from broker.client.nsq.options import Address, Options, checked, parse_address


class _Node:
    """One server and its state."""

    def __init__(self, address: Address, options: Options, clock: Clock) -> None:
        self.address = address
        self.retry_at_s = 0.0
        self.connection: Connection | None = None
        self._options = options
        self._clock = clock
        self._retry_s = limits.WRITER_RETRY_S
        self._dialling = asyncio.Lock()

    @property
    def down(self) -> bool:
        """Whether it was unreachable a short while ago."""
        return self.connection is None and self._clock.now() < self.retry_at_s

    def _lost(self, _: NsqError) -> None:
        self.connection = None

    async def open(self) -> Connection:
        """The connection; opened if there is none."""
        async with self._dialling:
            if self.connection is None:
                fresh = Connection(self.address, self._options, self._clock, on_lost=self._lost)
                try:
                    await fresh.open()
                except ConnectError:
                    self.retry_at_s = self._clock.now() + self._retry_s
                    self._retry_s = min(2 * self._retry_s, limits.WRITER_RETRY_S_MAX)
                    raise
                self._retry_s = limits.WRITER_RETRY_S
                self.connection = fresh
            return self.connection


class Writer:
    """A publisher. With several addresses they take turns.

    A publish that was sent and lost its connection raises ClosedError: the server may have it.
    `failover` skips unreachable servers; without it each has its turn.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        options: Options | None = None,
        *,
        failover: bool = True,
        pending_max: int = limits.PENDING_MAX,
        clock: Clock | None = None,
    ) -> None:
        given = [addresses] if isinstance(addresses, str) else list(addresses)
        if not given:
            raise ValueError("give the address of at least one nsqd")
        clock = clock or LoopClock()
        self._nodes = [_Node(parse_address(a), options or Options(), clock) for a in given]
        self._turn = 0
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
        nodes = self._nodes[self._turn :] + self._nodes[: self._turn]
        self._turn = (self._turn + 1) % len(nodes)
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

    async def pub(self, topic: str, body: bytes) -> None:
        """Publish one message; return when the server has acknowledged it. Calls may be
        concurrent."""
        await self._publish(encode_pub(topic, body))

    async def mpub(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish several messages at once: all or none."""
        await self._publish(encode_mpub(topic, bodies))

    async def dpub(self, topic: str, body: bytes, delay_s: float) -> None:
        """Publish one message that is delivered after the delay."""
        await self._publish(encode_dpub(topic, body, delay_s))

    def send(self, topic: str, body: bytes) -> asyncio.Future[bytes]:
        """Publish on an open connection and return the future of the answer.

        The fastest way to publish many messages; the caller limits their number.
        """
        for _ in self._nodes:
            node = self._nodes[self._turn]
            self._turn = (self._turn + 1) % len(self._nodes)
            if node.connection is not None:
                return self._ask(node.connection, encode_pub(topic, body))
        raise ClosedError("not connected")

    async def close(self) -> None:
        """Wait some time for pending answers, then close."""
        self._closed = True
        for node in self._nodes:
            connection = node.connection
            if connection is not None:
                try:
                    async with asyncio.timeout(limits.CLOSE_S):
                        await connection.settled()
                except TimeoutError:
                    pass  # publishers that wait get the error of the closed connection
                connection.close()


def encode_pub(topic: str, body: bytes) -> bytes:
    """PUB; ValueError: invalid name."""
    return b"PUB %b\n%b%b" % (checked(topic), len(body).to_bytes(4, "big"), body)


def encode_dpub(topic: str, body: bytes, delay_s: float) -> bytes:
    """DPUB."""
    size = len(body).to_bytes(4, "big")
    return b"DPUB %b %d\n%b%b" % (checked(topic), round(delay_s * 1000), size, body)


def encode_mpub(topic: str, bodies: Iterable[bytes]) -> bytes:
    """MPUB."""
    parts: list[bytes] = []
    for body in bodies:
        parts += [len(body).to_bytes(4, "big"), body]
    if not parts:
        raise ValueError("give at least one message")
    content = (len(parts) // 2).to_bytes(4, "big") + b"".join(parts)
    return b"MPUB %b\n%b%b" % (checked(topic), len(content).to_bytes(4, "big"), content)
