"""A handler for tests of the NSQ client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker.client.nsq import Message, Reader

WAIT_S = 20.0
Open = Callable[..., Awaitable[Reader]]


class Inbox:
    """A handler that collects messages, which the test then answers."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    def __call__(self, message: Message) -> None:
        message.detach()
        self.messages.put_nowait(message)

    async def next(self) -> Message:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)
