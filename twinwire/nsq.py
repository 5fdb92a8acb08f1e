"""An asyncio client of NSQ: `Writer` publishes, `Reader` consumes a channel.

    from twinwire import nsq

    async with nsq.Writer("127.0.0.1:4150") as writer:
        await writer.publish("orders", b"one")

In signatures, `Body` is bytes, bytearray or memoryview, and `Handler` a function of a `Message`
that returns a bool, None, or an awaitable of one.

It connects to Twinwire and to nsqd, and needs only the standard library, except for nsqlookupd
(aiohttp) and `snappy=True` (python-snappy).
"""

from broker.client.nsq import (
    ClosedError,
    ConnectError,
    Message,
    NsqError,
    Options,
    PendingFullError,
    Reader,
    ServerError,
    Writer,
)

__all__ = [
    "ClosedError",
    "ConnectError",
    "Message",
    "NsqError",
    "Options",
    "PendingFullError",
    "Reader",
    "ServerError",
    "Writer",
]
