"""Requests that the server itself sends on a bus, and their answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import field
from typing import Protocol

from broker.base.values import dataclass


class ReceivedMessage(Protocol):
    """A received message."""

    @property
    def data(self) -> bytes: ...
    @property
    def subject(self) -> bytes: ...


class LocalSubscription(Protocol):
    """A subscription of the server itself."""

    def close(self) -> None: ...


class Bus(Protocol):
    """The part of an account that requests need."""

    def listen(
        self, subject: bytes, callback: Callable[..., object], queue: bytes = b""
    ) -> LocalSubscription: ...
    def publish(
        self, subject: bytes, data: bytes = b"", reply: bytes = b"", headers: bytes = b""
    ) -> int: ...


def inbox() -> bytes:
    """A reply subject that clients cannot guess."""
    return b"$SYS._INBOX." + secrets.token_urlsafe(16).encode()


@dataclass(frozen=True, slots=True)
class Question:
    """The subject and the body of a request."""

    subject: bytes
    data: bytes = field(default=b"", repr=False)
    headers: bytes = b""


async def ask(
    bus: Bus,
    question: Question,
    timeout_s: float,
    accepted: Callable[[bytes], bool] = lambda _data: True,
) -> bytes | None:
    """The first answer accepted; None without a subscriber or without an answer in time."""
    reply = inbox()
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_answer(message: ReceivedMessage) -> None:
        if not answer.done() and accepted(message.data):
            answer.set_result(message.data)

    subscription = bus.listen(reply, on_answer)
    try:
        if not bus.publish(question.subject, question.data, reply, question.headers):
            return None
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        return None
    finally:
        subscription.close()
